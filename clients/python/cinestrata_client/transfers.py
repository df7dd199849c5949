"""Client methods that send files or take several requests."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cinestrata_client.errors import TaskFailedError, UnreachableError, error_of
from cinestrata_client.requests import BaseClient, Call, Method
from cinestrata_schemas.search import ClipSearchResponse
from cinestrata_schemas.tasks import TaskDetails

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

        Args:
            name: File name, whose extension tells the format.
            captions: Number of library captions to return that describe the clip.
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
        idempotency_key: str | None = None,
    ) -> TaskDetails:
        """Create a task from a zip or tar archive of videos with a manifest or sidecar files.

        Args:
            name: Name of the domain.
            filename: File name of the archive with its extension; default: the file's own.
            method: Learning method; default: the service's.
            settings: Method settings.
            idempotency_key: Idempotency key; default: a random one.
        """
        data = {"name": name}
        if method is not None:
            data["method"] = method
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
        """Upload a video in resumable parts (tus); ``uri`` of the result names it in ``VideoSpec``.

        If the service has stored a different number of bytes, the upload continues there.
        """
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
                state = await self.exchange(Call("HEAD", template, path=parameters, headers=_TUS))
                if state.is_error:
                    raise error_of(state)
                offset = int(state.headers["Upload-Offset"])
        return upload

    @Method
    async def wait_for_task(self: BaseClient, task_id: str, *, timeout: float | None = None) -> TaskDetails:
        """Wait until a task is ready, and return it.

        Args:
            timeout: Maximum seconds; None: no limit.

        Raises:
            TaskFailedError: The task has failed, or was cancelled.
            TimeoutError: The task is not ready when the timeout ends.
        """
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
