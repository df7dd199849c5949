"""Calls with files: archives of videos, and searches with a clip."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cinestrata_client.calls import Call
from cinestrata_client.models import ClipSearchResponse, TaskDetails

__all__ = ["append_archive", "create_task_from_archive", "search_by_clip"]


def search_by_clip(
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
) -> Call[ClipSearchResponse]:
    """Search with a video clip or an image, which the service does not store.

    Args:
        clip: Content of the file.
        name: Name of the file.
        k: Maximum number of results.
        task: Names or ids of domains; default: all.
        captions: Number of captions of the library that describe the clip.
        min_duration: Minimum duration of a result in seconds.
        max_duration: Maximum duration of a result in seconds.
        where: Conditions on metadata.
        min_score: Minimum score of a result.
    """
    query = {
        "k": k,
        "task": task,
        "captions": captions,
        "min_duration": min_duration,
        "max_duration": max_duration,
        "where": where,
        "min_score": min_score,
    }
    return Call("POST", "/v1/search/clip", ClipSearchResponse, query=query, files={"clip": (name, clip)})


def create_task_from_archive(
    archive: BinaryIO,
    filename: str,
    name: str,
    *,
    method: str | None = None,
    settings: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Call[TaskDetails]:
    """Create a task from a zip or tar archive of videos with a manifest or sidecar files.

    Args:
        archive: The open archive.
        filename: Name of the archive with its extension.
        name: Name of the domain.
        method: Learning method; default: that of the service.
        settings: Settings of the method.
        idempotency_key: Key of the request; default: a random one.
    """
    data = {"name": name}
    if method is not None:
        data["method"] = method
    if settings is not None:
        data["settings"] = json.dumps(settings)
    return Call(
        "POST",
        "/v1/tasks",
        TaskDetails,
        headers={"Idempotency-Key": idempotency_key},
        files={"archive": (Path(filename).name, archive)},
        data=data,
        is_unbounded=True,
    )


def append_archive(
    task_id: str, archive: BinaryIO, filename: str, *, idempotency_key: str | None = None
) -> Call[TaskDetails]:
    """Append the videos of an archive to a learned domain.

    Args:
        task_id: Identifier of the domain's task.
        archive: The open archive.
        filename: Name of the archive with its extension.
        idempotency_key: Key of the request; default: a random one.
    """
    return Call(
        "POST",
        "/v1/tasks/{task_id}/videos",
        TaskDetails,
        path={"task_id": task_id},
        headers={"Idempotency-Key": idempotency_key},
        files={"archive": (Path(filename).name, archive)},
        is_unbounded=True,
    )
