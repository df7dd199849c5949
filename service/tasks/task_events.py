"""Task events in order, for the dashboard and ``GET /tasks/{id}/events``, and rejections of videos."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import TaskEvent
from cinestrata_schemas.uri_redaction import redact_uri
from media.errors import MediaError
from service.catalog.database import now, session_scope
from service.catalog.tables import Event, Task, Video
from service.core.errors import NotFound

Kind = Literal["state", "progress", "rejected", "log"]


def record(
    session: Session, task_id: str, kind: Kind, data: dict[str, Any], at: datetime | None = None
) -> None:
    """Append an event.

    The caller must hold the lock on the task's row. IDs are assigned at once but visible at commit, so a reader who
    asks for "all events after ID n" would miss an event that commits after a later one.
    """
    session.add(Event(task_id=task_id, at=at or now(session), kind=kind, data=data))


def events_after(task_id: str, last_id: int = 0, limit: int = 500) -> list[TaskEvent]:
    """List a task's events, oldest first; raise NotFound."""
    with session_scope() as session:
        if session.get(Task, task_id) is None:
            raise NotFound(f"There is no task {task_id!r}.")
        rows = session.scalars(
            select(Event).where(Event.task_id == task_id, Event.id > last_id).order_by(Event.id).limit(limit)
        )
        return [TaskEvent(id=e.id, task_id=e.task_id, at=e.at, kind=e.kind, data=e.data) for e in rows]  # type: ignore[arg-type]


SAME_CONTENT = "same content as "  # starts the reason for duplicates, which do not count as bad videos


class SameContent(MediaError):
    """A video has the same content as an accepted one.

    Args:
        uri: URI of the accepted video.
    """

    def __init__(self, uri: str, content_hash: str) -> None:
        super().__init__(SAME_CONTENT + redact_uri(uri))
        self.content_hash = content_hash


def reject(
    session: Session, video: Video, reason: str, *, is_final: bool, content_hash: str | None = None
) -> None:
    """Reject a video, and record the event.

    Args:
        is_final: Whether the content is the reason, so that a retry would reject the same file again.
        content_hash: Digest of a copy's content, by which a sync finds the original.
    """
    video.status, video.reason, video.content_hash = "rejected", reason, content_hash
    video.is_rejection_final = is_final
    facts = {"uri": redact_uri(video.uri), "video_id": video.id, "reason": reason}
    record(session, video.task_id, "rejected", facts)
