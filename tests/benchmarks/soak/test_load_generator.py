"""The load generator against a small server: rates, refusals, and lost connections."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from benchmarks.soak.load_generator import LoadGenerator, RequestMix, RequestRecord
from benchmarks.soak.run_soak import parse_duration

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}"
MIX = RequestMix(["a b", "c"], seed=1)


def _drive(
    response: bytes, send: Callable[[LoadGenerator], Awaitable[list[RequestRecord]]]
) -> list[RequestRecord]:
    """Return the records of a load on a server that gives this response to each request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(response)
                if not response:
                    break
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async def run() -> list[RequestRecord]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await send(LoadGenerator(f"http://127.0.0.1:{port}", MIX))

    return asyncio.run(run())


def test_requests_are_sent_at_the_rate() -> None:
    records = _drive(OK, lambda load: load.send_at_rate(200, 0.25))
    assert [record.status for record in records] == [200] * 50
    due = [record.due for record in records]
    assert due[-1] - due[0] == pytest.approx(49 / 200)


def test_load_can_end_before_its_duration() -> None:
    answers = iter([False, False, True])
    records = _drive(OK, lambda load: load.send_at_rate(200, 60, lambda: next(answers)))
    assert len(records) == 2


def test_clients_send_until_the_time_is_over() -> None:
    records = _drive(OK, lambda load: load.saturate(4, 0.1))
    assert len(records) >= 4
    assert {record.status for record in records} == {200}


def test_refusal_with_retry_after_is_recorded() -> None:
    records = _drive(REFUSED, lambda load: load.send_at_rate(50, 0.1))
    assert {(record.status, record.has_retry_after) for record in records} == {(429, True)}


def test_lost_connection_is_status_zero() -> None:
    records = _drive(b"", lambda load: load.send_at_rate(50, 0.1))
    assert {record.status for record in records} == {0}


def test_mix_has_all_kinds_and_mostly_searches() -> None:
    kinds = Counter(kind for (kind, path), _ in zip(RequestMix(["a b"], seed=1), range(1000), strict=False))
    assert set(kinds) == {"search", "similar", "video", "tasks"}
    assert kinds["search"] > 800
    texts = [
        path
        for (kind, path), _ in zip(RequestMix(["a"], seed=1), range(1000), strict=False)
        if kind == "search"
    ]
    assert 0.4 < len({*texts}) / len(texts) < 0.6, "half of the searches repeat a text"
    assert {len(text.split("%20")) for text in texts} == {*range(2, 15)}
    paths = [path for (_, path), _ in zip(RequestMix(["a b"], seed=1), range(100), strict=False)]
    assert not any(" " in path for path in paths)


def test_durations_have_a_unit() -> None:
    assert [parse_duration(text) for text in ("90s", "10m", "2h")] == [90, 600, 7200]
    for text in ("10", "5s", "1.5h", "-2h", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="no duration"):
            parse_duration(text)
