"""Endless heads and trailers, and several hosts, sent to a server with the product's HTTP parser."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from cli.commands.process_commands import HTTP_PROTOCOL

POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
FIELD = b"X: " + b"a" * 1020 + b"\r\n"


async def _answer_with_size(scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    config = uvicorn.Config(
        _answer_with_size, http=HTTP_PROTOCOL, lifespan="off", log_config=None, access_log=False
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=asyncio.run, args=(server.serve([listener]),))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


def _answer(port: int, parts: Iterator[bytes]) -> bytes:
    """Return the answer until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = b""
        try:
            while received := connection.recv(65536):
                answer += received
        except ConnectionResetError:  # bytes that the server did not read
            pass
        return answer


def _repeated(first: bytes, part: bytes, size: int) -> Iterator[bytes]:
    yield first
    for _ in range(size // len(part)):
        yield part


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (b"GET / HTTP/1.1\r\n", FIELD * 64),
        (b"GET / HTTP/1.1\r\nX: ", b"a" * 65536),
        (b"GET /", b"a" * 65536),
        (POST + b"1\r\na\r\n0\r\n", FIELD * 64),
        (POST + b"1;", b"a" * 65536),
    ],
    ids=["fields", "field", "target", "trailers", "extension of a chunk"],
)
def test_bytes_without_an_end_close_the_connection(port: int, first: bytes, part: bytes) -> None:
    sent = 0

    def counted() -> Iterator[bytes]:
        nonlocal sent
        for each in _repeated(first, part, 200_000_000):
            yield each
            sent += len(each)

    answer = _answer(port, counted())
    assert sent < 100_000_000
    assert b" 200 " not in answer


def test_head_below_the_limit_and_a_large_body_are_accepted(port: int) -> None:
    head = POST[:-2] + FIELD * (65536 // len(FIELD) - 1) + b"\r\n"
    chunk = b"%x\r\n%b\r\n" % (50_000, b"a" * 50_000)
    parts = iter((head, *([chunk] * 10), b"0\r\n\r\n"))
    assert _answer(port, parts).endswith(b"500000 bytes")
    with httpx.Client() as client:  # its connection is used again, and earlier heads do not count
        for _ in range(5):
            assert client.get(f"http://127.0.0.1:{port}/", headers={"X": "a" * 40_000}).text == "0 bytes"


def test_request_with_several_hosts_is_refused(port: int) -> None:
    """A proxy may route by a different field than the service checks."""
    request = b"GET / HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n"
    assert _answer(port, iter([request])).startswith(b"HTTP/1.1 400 ")
