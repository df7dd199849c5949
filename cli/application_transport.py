"""An httpx transport that calls an ASGI application in this process, without a server."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
from starlette.types import ASGIApp, Message

_T = TypeVar("_T")


class ApplicationTransport(httpx.BaseTransport):
    """Passes each request to the application, and raises its unexpected errors.

    The first interrupt (Ctrl-C) during a request has no effect: a thread that is storing something can't be
    interrupted, and the response says what was stored. A second one cancels the request.
    """

    def __init__(self, load: Callable[[], ASGIApp]) -> None:
        self._load = load
        self._app: ASGIApp | None = None
        # All requests run in one event loop, because the application's locks and tasks belong to it.
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)  # without running it again

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response to a request as soon as its head is known; the body follows as it is read."""
        if self._app is None:
            self._app = self._load()
        exchange = _Exchange(self._app, request, self._loop)
        status, headers = exchange.head()
        return httpx.Response(status, headers=headers, stream=exchange)

    def close(self) -> None:
        """Close the event loop."""
        self._loop.close()


class _Exchange(httpx.SyncByteStream):
    """A request to the application and its response body. The event loop runs only while the caller waits."""

    def __init__(self, app: ASGIApp, request: httpx.Request, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._request_body = iter(request.stream)  # type: ignore[arg-type]
        # the application waits for the reader
        self._messages: asyncio.Queue[Message] = asyncio.Queue(maxsize=1)
        self._closed = asyncio.Event()
        self._is_interrupted = False
        self._task = loop.create_task(self._run(app, request))

    async def _run(self, app: ASGIApp, request: httpx.Request) -> None:
        await app(_scope(request), self._receive, self._messages.put)

    def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return status and headers."""
        message = self._next_message()
        return message["status"], list(message["headers"])

    def __iter__(self) -> Iterator[bytes]:
        is_complete = False
        while not is_complete:
            message = self._next_message()
            is_complete = not message.get("more_body", False)
            yield message.get("body", b"")
        self._wait(self._task)  # background work of the application

    def close(self) -> None:
        """End the request, if it has not ended."""
        if self._loop.is_closed() or self._task.done():
            return
        self._closed.set()
        self._task.cancel()
        self._loop.run_until_complete(asyncio.wait([self._task]))

    def _next_message(self) -> Message:
        async def receive() -> Message:
            message = asyncio.ensure_future(self._messages.get())
            await asyncio.wait([message, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not message.done():
                message.cancel()
                await self._task  # raises the error of the application
                raise RuntimeError("the application ended without a response")
            return message.result()

        return self._wait(self._loop.create_task(receive()))

    def _wait(self, task: asyncio.Task[_T]) -> _T:
        while True:
            try:
                return self._loop.run_until_complete(task)
            except KeyboardInterrupt:
                if self._is_interrupted:
                    self.close()
                    raise
                self._is_interrupted = True

    async def _receive(self) -> Message:
        block = next(self._request_body, None)
        if block is not None:
            return {"type": "http.request", "body": block, "more_body": True}
        if self._request_body is not _ENDED:
            self._request_body = _ENDED
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._closed.wait()
        return {"type": "http.disconnect"}


_ENDED: Iterator[bytes] = iter(())


def _scope(request: httpx.Request) -> dict[str, Any]:
    url = request.url
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": url.scheme,
        "path": url.path,
        "raw_path": url.raw_path.partition(b"?")[0],
        "query_string": url.query,
        "server": (url.host, url.port),
        "client": ("", 0),
        "root_path": "",
    }
