"""The client that commands use: over HTTP for a URL, or in this process for a data folder."""

from __future__ import annotations

import asyncio
import math
import shlex
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
from starlette.types import ASGIApp, Message

from cinestrata_client import Client, NotFoundError, RetryPolicy, ServiceError, UnreachableError
from cinestrata_schemas.videos import DeletionRequest, DeletionResult
from cli.console import error_console, fail, refuse_call
from cli.embedded.data_folder import data_folder_settings, read_lock_holder
from service.core.change_sequence import LATEST

FINAL_STATES = ("ready", "failed", "cancelled")  # of tasks
PAGE = 1000  # entries per page of a complete list
_MAX_DELETED = 20_000  # videos per request

_READY_SECONDS = 2.0
# A user is waiting: a service that asks for a longer pause is reported at once.
_RETRIES = RetryPolicy(max_retries=2, max_pause=2.0, first_pause=0.25)
_IN_PROCESS_URL = "http://localhost"


class ServiceClient(Client):
    """Client of a remote service, or of a data folder without a service."""

    def __init__(
        self, url: str | None, data: Path | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.is_remote = url is not None
        self.data = data
        retries = _RETRIES
        if url is None:
            url, retries = _IN_PROCESS_URL, RetryPolicy(max_retries=0)
            transport = ApplicationTransport(lambda: _load_application(data))
        try:
            super().__init__(url, retries=retries, transport=transport)
            self.change_sequence = LATEST  # the edit may be that of another command
        except (ValueError, httpx.InvalidURL, ImportError) as error:  # httpx reads proxy variables, too
            hint = "Check --url (CINESTRATA_URL), CINESTRATA_API_KEY, and HTTP_PROXY, ALL_PROXY and NO_PROXY."
            refuse_call(f"{error}".rstrip(".") + ".", hint)

    def remove_videos(self, videos: list[str]) -> DeletionResult:
        """Delete videos permanently, with one request per task."""
        by_task: dict[str, list[str]] = {}
        outcome = DeletionResult(deleted=[], not_found=[])
        for video in dict.fromkeys(videos):
            try:
                by_task.setdefault(self.get_video(video).task_id, []).append(video)
            except NotFoundError:
                outcome.not_found.append(video)
        for task, ids in by_task.items():
            for start in range(0, len(ids), _MAX_DELETED):
                part = self.delete_videos(task, DeletionRequest(videos=ids[start : start + _MAX_DELETED]))
                outcome.deleted.extend(part.deleted)
                outcome.not_found.extend(part.not_found)
        return outcome

    def lacks_service(self) -> bool:
        """Return whether the client uses a data folder without a running service."""
        return not self.is_remote and read_lock_holder(data_folder_settings(self.data).run_dir) is None

    def lacks_workers(self) -> bool:
        """Return whether no worker has reported recently."""
        return not self.get_library().live_workers


def connect(url: str | None, data: Path | None, *, ask_running: bool = False) -> ServiceClient:
    """Create a client of the service at ``url``, or of the data folder: of its running service if ``ask_running``."""
    if url is None and ask_running:
        url = _running_service(data)
    return ServiceClient(url or None, data)


def open_agent_api(url: str | None, data: Path | None) -> Callable[[object], httpx.AsyncClient]:
    """Return a function that opens an API client: of a service, or of a data folder without one."""
    url = url or _running_service(data)
    if url is None:
        transport = httpx.ASGITransport(
            _load_application(data, follow_index=True), raise_app_exceptions=False
        )
        return lambda _: httpx.AsyncClient(transport=transport, base_url=_IN_PROCESS_URL)
    options = ServiceClient(url).http_options
    return lambda _: httpx.AsyncClient(**options)


def _load_application(data: Path | None, *, follow_index: bool = False) -> ASGIApp:
    # A client over HTTP needs neither a database nor the application.
    import logging

    import structlog

    from api.operator_app import create_operator_app
    from service.access.audit_log import command_line_actor, set_process_actor
    from service.catalog.migrations import upgrade

    settings = data_folder_settings(data)
    # The command reports success itself.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    logging.getLogger("httpx").setLevel(logging.WARNING)
    upgrade(settings)
    set_process_actor(command_line_actor())
    return create_operator_app(settings, follow_index=follow_index)


def _running_service(data: Path | None) -> str | None:
    """Find a ready service on a data folder that accepts the key in the environment; return its URL or None."""
    url = (read_lock_holder(data_folder_settings(data).run_dir) or {}).get("url")
    if url is None:
        return None
    try:
        with Client(url, timeout=_READY_SECONDS, retries=RetryPolicy(max_retries=0)) as client:
            if not client.readyz().ready:
                return None
            client.get_current_access()
    except (ServiceError, UnreachableError, ValueError):  # the last: a malformed key or response
        return None
    return str(url)


_CHECK_SECONDS = 5.0
_START_SECONDS = 60.0  # workers of a starting service import torch before they report


class WorkerWatch:
    """Notices when no worker does the work that a command waits for."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self._next_check = 0.0
        self._missing_since: float | None = None

    def check(self) -> None:
        """Look for workers every few seconds: exit if no service runs on the data folder, or say once that none run."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_SECONDS
        if not self._client.lacks_workers():
            self._missing_since = None
            return
        if self._client.lacks_service():
            fail(*_notice(self._client))
        self._missing_since = self._missing_since or now
        if now - self._missing_since >= _START_SECONDS:
            self._next_check = math.inf  # one line is enough
            print_notice(self._client)


def print_notice(client: ServiceClient) -> None:
    """Print to standard error that queued work is waiting, if no worker runs."""
    if client.lacks_workers():
        for line in _notice(client):
            error_console.say(line)


def _notice(client: ServiceClient) -> tuple[str, str]:
    if not client.lacks_service():
        return (
            "The service has no running worker: the work stays queued.",
            "Start its workers, and check their logs if they stop.",
        )
    folder = f" --data {shlex.quote(str(client.data))}" if client.data else ""
    return (
        "The work is queued, but no service is running on the data folder.",
        f"Start the service: cinestrata up{folder}",
    )


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
        message = exchange.next_message()
        return httpx.Response(message["status"], headers=list(message["headers"]), stream=exchange)

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

    def __iter__(self) -> Iterator[bytes]:
        is_complete = False
        while not is_complete:
            message = self.next_message()
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

    def next_message(self) -> Message:
        """Wait for the next message of the response."""

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
