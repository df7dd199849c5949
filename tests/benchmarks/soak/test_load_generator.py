"""The load generator against a small server: rates, refusals, and lost connections."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from threading import Thread

import pytest

from benchmarks.soak.load_generator import LoadGenerator

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a server that gives the parameter as response to each request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(request.param)
                if not request.param:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    server.close()
    loop.close()


@pytest.mark.parametrize("url", [OK], indirect=True)
def test_requests_are_sent_at_the_rate_or_until_the_last_path(url: str) -> None:
    load = LoadGenerator(url, itertools.repeat("/", 60), read=len)
    records = load.send_at_rate(200, lambda elapsed: elapsed >= 0.25)
    assert [(record.status, record.value) for record in records] == [(200, 2)] * 50
    due = sorted(record.due for record in records)
    assert due[-1] - due[0] == pytest.approx(49 / 200)
    assert len(load.saturate(4)) == 10


@pytest.mark.parametrize(("url", "outcome"), [(REFUSED, (429, True)), (b"", (0, False))], indirect=["url"])
def test_refusals_and_lost_connections_are_recorded(url: str, outcome: tuple[int, bool]) -> None:
    records = LoadGenerator(url, itertools.repeat("/")).send_at_rate(50, lambda elapsed: elapsed >= 0.1)
    assert {(record.status, record.has_retry_after) for record in records} == {outcome}
