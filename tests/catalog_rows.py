"""Rows of the catalog that tests compare with what the product reports."""

from __future__ import annotations

from sqlalchemy import select

from service.catalog.database import session_scope
from service.catalog.tables import Video

__all__ = ["accepted_videos"]


def accepted_videos(task_id: str) -> list[Video]:
    """The rows of the accepted videos of a task, in order of their vector ids."""
    with session_scope() as session:
        query = select(Video).where(Video.task_id == task_id, Video.status == "accepted")
        return list(session.scalars(query.order_by(Video.vector_id)))
