"""The synchronous and the asynchronous client, and their methods that send files or take several requests."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

from cinestrata_client.errors import TaskFailedError, UnreachableError, error_of
from cinestrata_client.operations import Operations
from cinestrata_client.requests import AwaitedClient, BaseClient, BlockingClient, Call, Method
from cinestrata_schemas.search import ClipSearchResponse
from cinestrata_schemas.tasks import TaskDetails, TaskEvent

CHUNK_BYTES = 8 * 1024**2  # per request; a broken connection loses at most these
_TUS = {"Tus-Resumable": "1.0.0"}
_CONFLICT, _LOCKED = 409, 423
_MAX_CORRECTIONS = 10
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.25, 5.0


@dataclass(frozen=True)
class FileUpload:
    """A complete upload."""

    id: str

    @property
    def uri(self) -> str:
        """URI of the file for use in a task."""
        return f"upload://{self.id}"


class Transfers:
    """Methods for archives, uploads, clips, and waiting for a task."""

    @Method
    async def search_by_clip(
        self: BaseClient,
        clip: bytes | BinaryIO,
        name: str = "clip.mp4",
        *,
        k: int | None = None,
        task: Sequence[str] | None = None,
        captions: int | None = None,
        min_duration: float | None = None,
        max_duration: float | None = None,
        where: Mapping[str, Any] | None = None,
        min_score: float | None = None,
    ) -> ClipSearchResponse:
        """Search with a video clip or image, which the service does not store; filters are those of ``search``.

        The extension of ``name`` tells the format; ``captions`` is the number of library captions that describe the
        clip.
        """
        query: dict[str, Any] = {"k": k, "task": task, "captions": captions, "where": where}
        query |= {"min_score": min_score, "min_duration": min_duration, "max_duration": max_duration}
        call = Call[ClipSearchResponse](
            "POST", "/search/clip", ClipSearchResponse, query=query, files={"clip": (name, clip)}
        )
        return await self.answer(call)

    @Method
    async def create_task_from_archive(
        self: BaseClient,
        archive: str | Path | BinaryIO,
        name: str,
        *,
        filename: str | None = None,
        method: str | None = None,
        settings: Mapping[str, Any] | None = None,
        backbone: str | None = None,
        read: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskDetails:
        """Create a task from a zip or tar archive of videos with a manifest or sidecar files.

        The extension of ``filename``, by default the file's own name, tells the format. ``method``, ``backbone`` and
        ``read`` are the service's by default, and the key is a random one.
        """
        fields = {"name": name, "method": method, "backbone": backbone, "read": read}
        data = {field: value for field, value in fields.items() if value is not None}
        if settings is not None:
            data["settings"] = json.dumps(settings)
        return await _send_archive(self, "/tasks", archive, filename, idempotency_key, data=data)

    @Method
    async def append_archive(
        self: BaseClient,
        task_id: str,
        archive: str | Path | BinaryIO,
        *,
        filename: str | None = None,
        idempotency_key: str | None = None,
    ) -> TaskDetails:
        """Append the videos in a zip or tar archive (a path or an open file) to a learned domain."""
        path = {"task_id": task_id}
        return await _send_archive(
            self, "/tasks/{task_id}/videos", archive, filename, idempotency_key, path=path
        )

    @Method
    async def upload_file(self: BaseClient, path: str | Path) -> FileUpload:
        """Upload a video in resumable parts (tus); ``uri`` of the result names it in ``VideoSpec``."""
        path = Path(path)
        size = path.stat().st_size
        name = base64.b64encode(path.name.encode()).decode()
        headers = {**_TUS, "Upload-Length": str(size), "Upload-Metadata": f"filename {name}"}
        created = await self.exchange(Call("POST", "/uploads", headers=headers))
        if created.is_error:
            raise error_of(created)
        upload = FileUpload(created.headers["Location"].rpartition("/")[2])
        template, parameters = "/uploads/{upload_id}", {"upload_id": upload.id}
        offset = corrections = 0
        with path.open("rb") as file:
            while offset < size:
                file.seek(offset)
                block = file.read(CHUNK_BYTES)
                if not block:
                    raise OSError(f"{path} became shorter while it was uploaded")
                headers = {
                    **_TUS,
                    "Upload-Offset": str(offset),
                    "Content-Type": "application/offset+octet-stream",
                }
                corrections += 1
                part = Call[None]("PATCH", template, path=parameters, headers=headers, content=block)
                try:
                    answer = await self.exchange(part)
                except UnreachableError:  # the service keeps the received bytes
                    if corrections > _MAX_CORRECTIONS:
                        raise
                else:
                    if answer.is_success:
                        offset, corrections = int(answer.headers["Upload-Offset"]), 0
                        continue
                    if answer.status_code not in (_CONFLICT, _LOCKED) or corrections > _MAX_CORRECTIONS:
                        raise error_of(answer)
                # The service may have stored a different number of bytes.
                state = await self.exchange(Call("HEAD", template, path=parameters, headers=_TUS))
                if state.is_error:
                    raise error_of(state)
                offset = int(state.headers["Upload-Offset"])
        return upload

    @Method
    async def wait_for_task(self: BaseClient, task_id: str, *, timeout: float | None = None) -> TaskDetails:
        """Wait until a task is ready, and return it; raises TaskFailedError, or TimeoutError after so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_POLL_SECONDS
        while True:
            call = Call[TaskDetails]("GET", "/tasks/{task_id}", TaskDetails, path={"task_id": task_id})
            task = await self.answer(call)
            if task.state == "ready":
                return task
            if task.state in ("failed", "cancelled"):
                raise TaskFailedError(task.id, task.state, task.error, task.error_hint)
            if end is not None and time.monotonic() + pause > end:
                raise TimeoutError(f"Task {task_id} is {task.state} after {timeout} seconds")
            await self.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)


async def _send_archive(
    client: BaseClient,
    template: str,
    archive: str | Path | BinaryIO,
    filename: str | None,
    idempotency_key: str | None,
    **options: Any,
) -> TaskDetails:
    with Path(archive).open("rb") if isinstance(archive, str | Path) else nullcontext(archive) as file:
        options["files"] = {"archive": (filename or Path(file.name).name, file)}
        options["headers"] = {"Idempotency-Key": idempotency_key}
        return await client.answer(
            Call[TaskDetails]("POST", template, TaskDetails, **options, is_unbounded=True)
        )


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

    _open = httpx.Client
    _http: httpx.Client

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
        """Open the response to any request below ``/v1``; ``options`` are those of ``httpx.Client.stream``.

        Raises ServiceError, or UnreachableError if there is no response or it broke off.
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

    _open = httpx.AsyncClient
    _http: httpx.AsyncClient

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
