"""Transport of httpx that calls an ASGI application in this process, without a server."""

from __future__ import annotations

import asyncio
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import IO

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_MEMORY_BYTES = 1024**2  # larger answers, such as archives of snapshots, are kept in a file
_BLOCK_BYTES = 64 * 1024


class ApplicationTransport(httpx.BaseTransport):
    """Answers each request by the application, and raises its unexpected errors.

    Args:
        load: Creates the application for the first request.
    """

    def __init__(self, load: Callable[[], ASGIApp]) -> None:
        self._load = load
        self._app: ASGIApp | None = None
        # All requests run in one event loop: the application keeps locks and tasks that belong to it.
        self._runner: asyncio.Runner | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the complete answer to a request."""
        if self._app is None or self._runner is None:
            self._app, self._runner = self._load(), asyncio.Runner()
            weakref.finalize(self, self._runner.get_loop().close)  # without running it again
        return self._runner.run(_respond(self._app, request))

    def close(self) -> None:
        """Close the event loop."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


async def _respond(app: ASGIApp, request: httpx.Request) -> httpx.Response:
    body = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115  closed with the answer

    async def collect(scope: Scope, receive: Receive, send: Send) -> None:
        async def keep(message: Message) -> None:
            if message["type"] == "http.response.body":
                body.write(message.get("body", b""))
            else:
                await send(message)

        await app(scope, receive, keep)
        await send({"type": "http.response.body"})

    try:
        transport = httpx.ASGITransport(collect, client=("", 0))
        response = await transport.handle_async_request(request)
    except BaseException:
        body.close()
        raise
    body.seek(0)
    return httpx.Response(response.status_code, headers=response.headers, stream=_Body(body))


class _Body(httpx.SyncByteStream):
    """The body of an answer in a temporary file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        while block := self._file.read(_BLOCK_BYTES):
            yield block

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
