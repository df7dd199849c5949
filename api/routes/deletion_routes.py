"""Videos go for good, one, some, or a whole domain."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body

from service.core.schemas import DeletionRequest, DeletionResult
from service.library.deletion import delete_task, delete_videos

__all__ = ["router"]

router = APIRouter()


@router.delete("/videos/{video_id}", operation_id="delete_video", tags=["videos"])
def delete_video(video_id: str) -> DeletionResult:
    """Delete a video: it is not found, shown, learned from or measured any more. Twice is like once.

    Captions, metadata, thumbnail, sampled frames and an uploaded file go at once; a file below the media root stays.
    """
    return delete_videos([video_id])


@router.delete("/tasks/{task_id}/videos", operation_id="delete_videos", tags=["tasks"])
def delete_many(
    task_id: str,
    chosen: Annotated[DeletionRequest, Body(openapi_examples={"two": {"value": {"videos": ["a", "b"]}}})],
) -> DeletionResult:
    """Delete videos of a task, as one by one. Ids of other tasks' videos are not found here, and stay."""
    return delete_videos(chosen.videos, task_id=task_id)


@router.delete("/tasks/{task_id}", operation_id="delete_task", tags=["tasks"])
def delete_domain(task_id: str) -> DeletionResult:
    """Delete all videos of a task, as one by one, and what was measured of it. One that goes on is cancelled first.

    A task that was never laid down is gone afterwards. One that was learned stays in its place without videos, and its
    name stays taken: later releases are built on what it taught. Its vectors go with the next `cinestrata compact`.
    """
    return delete_task(task_id)
