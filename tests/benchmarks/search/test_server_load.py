"""The clients that load a server: every text is asked once, by as many connections as there are clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks.search.server_load import measure_load

_CLIENTS = 3


class _Server(ThreadingHTTPServer):
    """Answers when all clients have asked, and refuses one text.

    Attributes:
        asked: by connection.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.queries: dict[Any, list[str]] = {}
        self.together: Barrier | None = None
        self.body = b'{"query":"x","results":[]}'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        assert asked["k"] == ["10"]
        self.server.queries.setdefault(self.client_address, []).append(asked["q"][0])
        if self.server.together is not None:
            self.server.together.wait(10)
        self.send_response(429 if asked["q"] == ["refused"] else 200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _url(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_every_text_is_asked_once_over_connections_that_stay_open(server: _Server) -> None:
    texts = [f"a café & {number}" for number in range(4 * _CLIENTS)]
    server.together = Barrier(_CLIENTS)
    told = measure_load(_url(server), os.getpid(), texts, _CLIENTS)
    assert sorted(text for one in server.queries.values() for text in one) == sorted(texts)
    assert [len(one) for one in server.queries.values()] == [4] * _CLIENTS
    assert told.rate > 0
    # Both are this process, and the one is counted in hundredths of a second.
    assert told.server == pytest.approx(told.client, abs=20 / len(texts) + told.client / 2)


def test_load_fails_on_refused_searches_and_invalid_responses(server: _Server) -> None:
    with pytest.raises(RuntimeError, match="429"):
        measure_load(_url(server), os.getpid(), ["good", "refused"], 1)
    server.body = b"<html></html>"
    with pytest.raises(RuntimeError, match="not a search result"):
        measure_load(_url(server), os.getpid(), ["good"], 1)
