"""Load clients of a server: one search per text, and one connection per client."""

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
    """Test server that refuses the text ``refused``.

    Attributes:
        queries: Texts of each connection.
        barrier: Delays responses until all clients have sent a request; None: no delay.
        body: Body of every response.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.queries: dict[Any, list[str]] = {}
        self.barrier: Barrier | None = None
        self.body = b'{"query":"x","results":[]}'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        parameters = parse_qs(urlsplit(self.path).query)
        assert parameters["k"] == ["10"]
        self.server.queries.setdefault(self.client_address, []).append(parameters["q"][0])
        if self.server.barrier is not None:
            self.server.barrier.wait(10)
        self.send_response(429 if parameters["q"] == ["refused"] else 200)
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


def test_every_text_is_searched_once_over_persistent_connections(server: _Server) -> None:
    texts = [f"a café & {number}" for number in range(4 * _CLIENTS)]
    server.barrier = Barrier(_CLIENTS)
    load = measure_load(_url(server), os.getpid(), texts, _CLIENTS)
    assert sorted(text for one in server.queries.values() for text in one) == sorted(texts)
    assert [len(one) for one in server.queries.values()] == [4] * _CLIENTS
    assert load.rate > 0
    # Client and server are the same process here, and CPU time of the server is counted in hundredths of a second.
    assert load.server == pytest.approx(load.client, abs=20 / len(texts) + load.client / 2)


def test_load_fails_on_refused_searches_and_invalid_responses(server: _Server) -> None:
    with pytest.raises(RuntimeError, match="429"):
        measure_load(_url(server), os.getpid(), ["good", "refused"], 1)
    server.body = b"<html></html>"
    with pytest.raises(RuntimeError, match="not a search result"):
        measure_load(_url(server), os.getpid(), ["good"], 1)
