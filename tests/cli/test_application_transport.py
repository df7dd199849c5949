"""Requests to an application in this process: bodies in parts, abandoned responses, unexpected errors."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cli.application_transport import ApplicationTransport

BLOCKS = 100
sent: list[int] = []


async def _stream(request: Request) -> Response:
    def blocks() -> Iterator[bytes]:
        for number in range(BLOCKS):
            sent.append(number)
            yield b"x" * 1000

    return StreamingResponse(blocks())


async def _length(request: Request) -> Response:
    return JSONResponse(await run_in_threadpool(len, await request.body()))


async def _fail(request: Request) -> Response:
    raise ValueError("unexpected")


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    sent.clear()
    routes = [Route("/stream", _stream), Route("/length", _length, methods=["POST"]), Route("/fail", _fail)]
    transport = ApplicationTransport(lambda: Starlette(routes=routes))
    with httpx.Client(transport=transport, base_url="http://localhost") as opened:
        yield opened


def test_bodies_are_sent_and_read_in_parts(client: httpx.Client) -> None:
    assert client.post("/length", content=(b"a" * 10 for _ in range(5))).json() == 50
    assert len(client.get("/stream").content) == 1000 * BLOCKS


def test_abandoned_response_is_not_continued(client: httpx.Client) -> None:
    with client.stream("GET", "/stream") as response:
        next(response.iter_raw())
    assert 0 < len(sent) < BLOCKS
    assert client.post("/length", content=b"abc").json() == 3


def test_unexpected_error_is_raised(client: httpx.Client) -> None:
    with pytest.raises(ValueError, match="unexpected"):
        client.get("/fail")
