"""Lists of videos, in pages by keyset."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from cinestrata_schemas.videos import VideoPage, VideoSummary
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Task, Video
from service.catalog.task_names import require_task
from service.library.video_details import video_fields

_ORDERS = KeysetOrders(
    {"added": Video.vector_id, "id": Video.id, "duration": Video.duration, "bytes": Video.bytes},
    unique=Video.vector_id,
)


def list_videos(
    task: str | None = None,
    *,
    status: str | None = None,
    split: str | None = None,
    text: str | None = None,
    sort: str = "added",
    cursor: str | None = None,
    limit: int = 100,
) -> VideoPage:
    """Return a page of videos.

    Args:
        task: Only videos of this task (name or id), and of the appends to its domain; None: of all tasks.
        status: Only videos with this status.
        split: Only videos with this effective split.
        text: Only videos whose id, URI, captions or reason contain this text, regardless of case.
        sort: ``added`` (order of arrival), ``id``, ``duration`` or ``bytes``; with ``-`` in reverse.
        cursor: ``next_cursor`` of the page before.

    Raises:
        NotFound: the task does not exist.
        InvalidInput: the cursor is not one of this list.
    """
    query = select(Video)
    if status is not None:
        query = query.where(Video.status == status)
    if split is not None:
        query = query.where(Video.effective_split == split)
    if text:
        query = query.where(contains_text(text, [Video.id, Video.uri, Video.reason], [Video.captions]))
    with session_scope() as session:
        if task is not None:
            query = _of_domain(session, query, task)
        page = _ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit)
    videos = [VideoSummary(**video_fields(video), added_at=video.added_at) for video in page.rows]
    return VideoPage(videos=videos, next_cursor=page.next_cursor)


def _of_domain(session: Session, query: Select[Any], name_or_id: str) -> Select[Any]:
    """Restrict a query to the videos of a task and of the appends to its domain."""
    task_id = require_task(session, name_or_id).id
    appends = select(Task.id).where(Task.target_id == task_id)
    if session.scalars(appends.limit(1)).first() is None:
        return query.where(Video.task_id == task_id)  # rows in the order of an index
    return query.where(in_domain(task_id))
