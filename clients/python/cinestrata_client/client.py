"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Concatenate, ParamSpec, Self, TypeVar

import httpx

from cinestrata_client import file_calls
from cinestrata_client.calls import Call, sync_method
from cinestrata_client.connection import DEFAULT_URL, connection_options
from cinestrata_client.errors import TaskFailedError, UnreachableError, error_of
from cinestrata_client.events import EventParser
from cinestrata_client.methods import SyncMethods
from cinestrata_client.models import (
    AuditRecord,
    RejectedVideo,
    ReleaseSummary,
    SearchResult,
    ShardSummary,
    TaskDetails,
    TaskEvent,
    VideoSummary,
)
from cinestrata_client.operations import (
    access_operations,
    measures_operations,
    search_operations,
    tasks_operations,
    videos_operations,
)
from cinestrata_client.pagination import next_page, page_items
from cinestrata_client.retries import RetryPolicy
from cinestrata_client.uploads import FileUpload, upload_steps

__all__ = ["Client"]

T = TypeVar("T")
_Item = TypeVar("_Item")
_P = ParamSpec("_P")
_POLL_SECONDS = 5.0


def _iterator(
    operation: Callable[_P, Call[Any]], item: type[_Item]
) -> Callable[Concatenate[Any, _P], Iterator[_Item]]:
    """Return a method that iterates over the entries of all pages of a list."""

    def method(self: Client, /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_Item]:
        return self._iterate(operation(*args, **kwargs))

    method.__doc__ = f"Entries of all pages of ``{operation.__name__}``, which are read as they are needed."
    return method


class Client(SyncMethods):
    """Client of a Cinestrata service.

    Each operation of the API is a method with the name of its ``operationId``. Requests that the service refuses for
    now (429, 503) are repeated after ``Retry-After``; requests whose connection fails are repeated if a repetition has
    no further effect. Usable as a context manager, which closes the connections. Thread-safe.

    Args:
        base_url: URL of the service.
        api_key: API key; None takes it from the variable ``CINESTRATA_API_KEY``.
        timeout: Seconds until a request without an answer fails; requests with many videos, or with an archive,
            have more.
        retries: Repetitions of failed requests.
        transport: Transport of httpx, for tests; None opens network connections.

    Raises:
        ValueError: ``base_url`` is not a URL, or no header can carry ``api_key``.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retries: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries or RetryPolicy()
        self._timeout = timeout
        self._http = httpx.Client(**connection_options(base_url, api_key, timeout), transport=transport)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, call: Call[T]) -> T:
        """Send a call; returns its answer.

        Raises:
            ServiceError: the answer is an error.
            UnreachableError: there is no answer.
        """
        return call.parse(self._checked(call))

    iter_videos = _iterator(videos_operations.list_videos, VideoSummary)
    iter_videos_of_task = _iterator(tasks_operations.list_videos_of_task, VideoSummary)
    iter_rejected_videos = _iterator(tasks_operations.list_rejected_videos, RejectedVideo)
    iter_tasks = _iterator(tasks_operations.list_tasks, TaskDetails)
    iter_releases = _iterator(measures_operations.list_releases, ReleaseSummary)
    iter_shards = _iterator(measures_operations.list_shards, ShardSummary)
    iter_audit_entries = _iterator(access_operations.list_audit_entries, AuditRecord)
    iter_search = _iterator(search_operations.search, SearchResult)

    search_by_clip = sync_method(file_calls.search_by_clip)

    def create_task_from_archive(
        self,
        archive: str | Path,
        name: str,
        *,
        method: str | None = None,
        settings: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> TaskDetails:
        """Create a task from a zip or tar file; see :func:`cinestrata_client.file_calls.create_task_from_archive`."""
        with Path(archive).open("rb") as file:
            return self.send(
                file_calls.create_task_from_archive(
                    file,
                    str(archive),
                    name,
                    method=method,
                    settings=settings,
                    idempotency_key=idempotency_key,
                )
            )

    def append_archive(
        self, task_id: str, archive: str | Path, *, idempotency_key: str | None = None
    ) -> TaskDetails:
        """Append the videos of a zip or tar file to a learned domain."""
        with Path(archive).open("rb") as file:
            call = file_calls.append_archive(task_id, file, str(archive), idempotency_key=idempotency_key)
            return self.send(call)

    def upload_file(self, path: str | Path) -> FileUpload:
        """Upload a video in resumable parts; ``uri`` of the result names it in ``VideoSpec``.

        Args:
            path: The file.
        """
        path = Path(path)
        steps = upload_steps(path, path.stat().st_size)
        answer: httpx.Response | UnreachableError | None = None
        while True:
            try:
                if isinstance(answer, UnreachableError):
                    call = steps.throw(answer)
                else:
                    call = next(steps) if answer is None else steps.send(answer)
            except StopIteration as finished:
                result: FileUpload = finished.value
                return result
            try:
                answer = self._exchange(call)
            except UnreachableError as error:
                answer = error

    def download_video(self, video_id: str, target: str | Path | BinaryIO) -> None:
        """Write the file of a video.

        Args:
            video_id: Identifier of the video.
            target: Path of the new file, or an open file.
        """
        call = Call[None]("GET", "/v1/videos/{video_id}/stream", None, path={"video_id": video_id})
        self._download(call, target)

    def download_snapshot(self, name: str, target: str | Path | BinaryIO) -> None:
        """Write the archive of a backup.

        Args:
            name: Name of the backup, as ``list_snapshots`` returns it.
            target: Path of the new file, or an open file.
        """
        call = Call[None]("GET", "/v1/snapshots/{name}", None, path={"name": name})
        self._download(call, target)

    def _download(self, call: Call[None], target: str | Path | BinaryIO) -> None:
        with (
            self._streamed(call) as response,
            Path(target).open("wb") if isinstance(target, str | Path) else nullcontext(target) as file,
        ):
            for block in response.iter_bytes():
                file.write(block)

    def watch_task(self, task_id: str) -> Iterator[TaskEvent]:
        """Events of a task until it has ended: states, progress, rejected videos and log lines.

        Args:
            task_id: Identifier of the task.
        """
        call = Call[None]("GET", "/v1/tasks/{task_id}/events", None, path={"task_id": task_id})
        parser = EventParser()
        with self._streamed(call, timeout=None) as response:
            for line in response.iter_lines():
                if (event := parser.feed(line)) is not None:
                    yield event

    def wait_for_task(self, task_id: str, *, timeout: float | None = None) -> TaskDetails:
        """Wait until a task is ready; returns it.

        Args:
            task_id: Identifier of the task.
            timeout: Maximum seconds; None: no limit.

        Raises:
            TaskFailedError: the task has failed, or was cancelled.
            TimeoutError: the task is not ready after the timeout.
        """
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.25
        while True:
            task: TaskDetails = self.send(tasks_operations.get_task(task_id))
            if task.state == "ready":
                return task
            if task.state in ("failed", "cancelled"):
                raise TaskFailedError(task.id, task.state, task.error, task.error_hint)
            if end is not None and time.monotonic() + pause > end:
                raise TimeoutError(f"Task {task_id} is {task.state} after {timeout} seconds")
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)

    def _iterate(self, call: Call[Any]) -> Iterator[Any]:
        following: Call[Any] | None = call
        while following is not None:
            response = self._checked(following)
            page = following.parse(response)
            yield from page_items(page)
            following = next_page(following, page, response)

    @contextmanager
    def _streamed(self, call: Call[None], **options: Any) -> Iterator[httpx.Response]:
        try:
            with self._http.stream(call.method, call.url, **options) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                yield response
        except httpx.RequestError as error:
            raise UnreachableError(self._http.base_url, call.method, call.url, error) from error

    def _checked(self, call: Call[Any]) -> httpx.Response:
        response = self._exchange(call)
        if not call.is_answered_by(response):
            raise error_of(response)
        return response

    def _exchange(self, call: Call[Any]) -> httpx.Response:
        call = self._retries.keyed(call)
        attempt = 0
        while True:
            outcome: httpx.Response | httpx.RequestError
            try:
                outcome = self._http.request(call.method, call.url, **call.options(self._timeout))
            except httpx.RequestError as error:
                outcome = error
            pause = self._retries.pause(call, attempt, outcome)
            if pause is not None:
                time.sleep(pause)
                attempt += 1
            elif isinstance(outcome, httpx.Response):
                return outcome
            else:
                raise UnreachableError(self._http.base_url, call.method, call.url, outcome) from outcome
