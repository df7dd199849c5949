"""Permanent deletion of videos and tasks."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body

from api.security.route_scopes import ScopedRoute, requires
from cinestrata_schemas.videos import DeletionRequest, DeletionResult
from service.core.errors import NotFound
from service.library.deletion import delete_task, delete_videos

router = APIRouter(route_class=ScopedRoute)


@router.delete("/videos/{video_id}", operation_id="delete_video", tags=["videos"])
@requires("ingest")
def delete_video(video_id: str) -> DeletionResult:
    """Delete a video: searches, training and evaluation no longer use it. A repetition gives 404.

    Captions, metadata, thumbnail, sampled frames and an uploaded file are deleted immediately; a file below the media
    root is kept.
    """
    result = delete_videos([video_id])
    if result.not_found:
        raise NotFound(f"There is no video {video_id!r}.")
    return result


@router.delete("/tasks/{task_id}/videos", operation_id="delete_videos", tags=["tasks"])
@requires("ingest")
def delete_videos_of_task(
    task_id: str,
    body: Annotated[DeletionRequest, Body(openapi_examples={"two": {"value": {"videos": ["a", "b"]}}})],
) -> DeletionResult:
    """Delete several videos of a task. Ids of other tasks' videos are reported as not found and kept."""
    return delete_videos(body.videos, task_id=task_id)


@router.delete("/tasks/{task_id}", operation_id="delete_task", tags=["tasks"])
@requires("ingest")
def delete_whole_task(task_id: str) -> DeletionResult:
    """Delete all videos of a task and its evaluation. A waiting or running task gives 409: cancel it first.

    A task that was never published is removed. A learned task stays in the sequence without videos, because later
    releases build on it; its name becomes available. The next `cinestrata compact` removes its vectors.
    """
    return delete_task(task_id)
