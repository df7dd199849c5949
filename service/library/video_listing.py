"""Lists of videos, in pages by keyset."""

from __future__ import annotations

from sqlalchemy import or_, select

from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.errors import InvalidInput, NotFound
from service.core.schemas import VideoPage, VideoSummary
from service.library.video_details import video_fields

__all__ = ["list_videos"]

_MAX_DIGITS = 18  # a vector id fits into 64 bits


def list_videos(
    task_id: str | None = None, *, status: str | None = None, cursor: str | None = None, limit: int = 100
) -> VideoPage:
    """Return a page of videos in the order of their arrival.

    A page begins after the vector id of its cursor. Its cost does not grow with its position, and videos that are
    added or deleted meanwhile neither repeat nor hide others.

    Args:
        task_id: Only videos of this task, and of the appends to its domain; None: of all tasks.
        status: Only videos with this status.
        cursor: ``next_cursor`` of the page before.
        limit: Maximum number of videos.

    Raises:
        NotFound: the task does not exist.
        InvalidInput: the cursor is not one of this list.
    """
    query = select(Video).order_by(Video.vector_id).limit(limit + 1)
    if cursor is not None:
        if not cursor.isascii() or not cursor.isdecimal() or len(cursor) > _MAX_DIGITS:
            raise InvalidInput.at(
                "cursor", "The cursor is invalid.", "Send the next_cursor of the page before."
            )
        query = query.where(Video.vector_id > int(cursor))
    if status is not None:
        query = query.where(Video.status == status)
    with session_scope() as session:
        if task_id is not None:
            if session.get(Task, task_id) is None:
                raise NotFound(f"There is no task {task_id!r}.")
            tasks = select(Task.id).where(or_(Task.id == task_id, Task.target_id == task_id))
            query = query.where(Video.task_id.in_(tasks))
        videos = session.scalars(query).all()
        page = [VideoSummary(**video_fields(video), added_at=video.added_at) for video in videos[:limit]]
    more = len(videos) > limit
    return VideoPage(videos=page, next_cursor=str(videos[limit - 1].vector_id) if more else None)
