"""The synchronous and the asynchronous client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

from cinestrata_client.errors import UnreachableError, error_of
from cinestrata_client.operations import Operations
from cinestrata_client.requests import DEFAULT_URL, AwaitedClient, BlockingClient, Call, RetryPolicy
from cinestrata_client.transfers import Transfers
from cinestrata_schemas.tasks import TaskEvent

_DEFAULT_RETRIES = RetryPolicy()


class Client(Operations, Transfers, BlockingClient):
    """Client of a Cinestrata service.

    Each API operation is a method named by its ``operationId``. Requests that the service temporarily refuses (429,
    503) are retried after ``Retry-After``; after a lost connection, only idempotent requests are retried. Usable as a
    context manager, which closes the connections. Thread-safe.

    Args:
        api_key: API key; default: the environment variable ``CINESTRATA_API_KEY``.
        timeout: Seconds until a request without a response fails; longer for requests with many videos or an archive.
        retries: How to retry failed requests.
        transport: httpx transport; None opens network connections.

    Raises:
        ValueError: The URL is not http or https, or the key has characters that a header cannot contain.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: RetryPolicy = _DEFAULT_RETRIES,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout, retries)
        self._http = httpx.Client(**self.http_options, transport=transport)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def download_video(self, video_id: str, target: str | Path | BinaryIO) -> None:
        """Write a video file to a path or an open file."""
        self._download(_path("/videos/{}/stream", video_id), target)

    def download_snapshot(self, name: str, target: str | Path | BinaryIO) -> None:
        """Write a backup archive, named as in ``list_snapshots``, to a path or an open file."""
        self._download(_path("/snapshots/{}", name), target)

    def watch_task(self, task_id: str) -> Iterator[TaskEvent]:
        """Yield a task's events until it ends: states, progress, rejected videos and log lines."""
        with self.stream("GET", _path("/tasks/{}/events", task_id), timeout=None) as response:
            for line in response.iter_lines():
                if (event := _parse_event(line)) is not None:
                    yield event

    async def send(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Send a request, and block until there is a response; ``options`` are those of ``httpx.Client.request``."""
        return self._http.request(method, url, **options)

    async def sleep(self, seconds: float) -> None:
        """Pause, and block the thread."""
        time.sleep(seconds)

    def iterate(self, call: Call[Any]) -> Iterator[Any]:
        """Yield the entries of all pages, starting at a call's page."""
        following: Call[Any] | None = call
        while following is not None:
            entries, following = self.run(self.page(following))
            yield from entries

    def _download(self, path: str, target: str | Path | BinaryIO) -> None:
        with self.stream("GET", path) as response, _opened(target) as file:
            for block in response.iter_bytes():
                file.write(block)

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Open the response to any request of the API; ``options`` are those of ``httpx.Client.stream``.

        Args:
            path: Path below ``/v1``.

        Raises:
            ServiceError: The response is an error.
            UnreachableError: There is no response, or it broke off.
        """
        try:
            with self._http.stream(method, f"/v1{path}", **options) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                yield response
        except httpx.RequestError as error:
            raise UnreachableError(self.base_url, method, f"/v1{path}", error) from error


class AsyncClient(Operations, Transfers, AwaitedClient):
    """Asynchronous client of a Cinestrata service, with the methods of :class:`Client`."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: RetryPolicy = _DEFAULT_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout, retries)
        self._http = httpx.AsyncClient(**self.http_options, transport=transport)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def download_video(self, video_id: str, target: str | Path | BinaryIO) -> None:
        """Write a video file to a path or an open file."""
        await self._download(_path("/videos/{}/stream", video_id), target)

    async def download_snapshot(self, name: str, target: str | Path | BinaryIO) -> None:
        """Write a backup archive, named as in ``list_snapshots``, to a path or an open file."""
        await self._download(_path("/snapshots/{}", name), target)

    async def watch_task(self, task_id: str) -> AsyncIterator[TaskEvent]:
        """Yield a task's events until it ends: states, progress, rejected videos and log lines."""
        async with self.stream("GET", _path("/tasks/{}/events", task_id), timeout=None) as response:
            async for line in response.aiter_lines():
                if (event := _parse_event(line)) is not None:
                    yield event

    async def send(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Send a request; ``options`` are those of ``httpx.AsyncClient.request``."""
        return await self._http.request(method, url, **options)

    async def sleep(self, seconds: float) -> None:
        """Pause without blocking the event loop."""
        await asyncio.sleep(seconds)

    async def iterate(self, call: Call[Any]) -> AsyncIterator[Any]:
        """Yield the entries of all pages, starting at a call's page."""
        following: Call[Any] | None = call
        while following is not None:
            entries, following = await self.run(self.page(following))
            for entry in entries:
                yield entry

    async def _download(self, path: str, target: str | Path | BinaryIO) -> None:
        async with self.stream("GET", path) as response:
            with _opened(target) as file:
                async for block in response.aiter_bytes():
                    file.write(block)

    @asynccontextmanager
    async def stream(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Open the response to any request of the API, as :meth:`Client.stream` does."""
        try:
            async with self._http.stream(method, f"/v1{path}", **options) as response:
                if not response.is_success:
                    await response.aread()
                    raise error_of(response)
                yield response
        except httpx.RequestError as error:
            raise UnreachableError(self.base_url, method, f"/v1{path}", error) from error


def _path(template: str, name: str) -> str:
    return template.format(quote(name, safe=""))


def _opened(target: str | Path | BinaryIO) -> nullcontext[BinaryIO] | BinaryIO:
    return Path(target).open("wb") if isinstance(target, str | Path) else nullcontext(target)


def _parse_event(line: str) -> TaskEvent | None:
    """Parse a line of an event stream; the service writes the data of an event in one line."""
    return TaskEvent.model_validate_json(line.removeprefix("data:")) if line.startswith("data:") else None
