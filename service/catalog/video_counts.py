"""Numbers of videos of a task by status and split."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.catalog.tables import Video

__all__ = ["count_task_videos"]


def count_task_videos(session: Session, task_id: str) -> dict[str, int]:
    """Return the fields of ``VideoCounts`` for the videos of a task."""
    rows = session.execute(
        select(Video.status, Video.effective_split, func.count())
        .where(Video.task_id == task_id)
        .group_by(Video.status, Video.effective_split)
    ).all()
    return {
        "videos": sum(count for _, _, count in rows),
        **{kind: sum(n for status, _, n in rows if status == kind) for kind in ("accepted", "rejected")},
        **{
            part: sum(n for _, split, n in rows if split == part)
            for part in ("train", "val", "test", "appended")
        },
    }
