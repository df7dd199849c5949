"""Videos of a domain: their condition and numbers, and counters of their edits, which version the caches of searches.

Each process compares the counters with those that its caches were computed for. The counters are increased in the
transaction that changes the videos, so rows that are read after a counter are at least as new as the counter.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.catalog.database import session_scope
from service.catalog.tables import Task, Video


def in_domain(task_id: str) -> ColumnElement[bool]:
    """Condition of the videos of a task and of the appends to its domain.

    One statement with this condition sees an append either before or after its publication. Of two statements,
    PostgreSQL shows a publication between them to the second only.
    """
    return Video.task_id.in_(select(Task.id).where(or_(Task.id == task_id, Task.target_id == task_id)))


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


def count_edit(session: Session, domain_id: str, *, captions: bool, metadata: bool) -> None:
    """Count an edit of a video.

    Args:
        session: Session that changes the video.
        domain_id: Identifier of the task whose shard has, or will have, the video.
        captions: Whether captions are changed.
        metadata: Whether metadata is changed.
    """
    session.execute(
        update(Task)
        .where(Task.id == domain_id)
        .values(
            caption_edits=Task.caption_edits + int(captions),
            metadata_edits=Task.metadata_edits + int(metadata),
        )
        .execution_options(synchronize_session=False)
    )


def read_caption_edits() -> dict[str, int]:
    """Return the number of caption edits of each domain that has any.

    Raises:
        Unavailable: the catalog cannot be read.
    """
    return _read(Task.caption_edits)


def read_metadata_edits() -> dict[str, int]:
    """Return the number of metadata edits of each domain that has any; errors as :func:`read_caption_edits`."""
    return _read(Task.metadata_edits)


def _read(counter: InstrumentedAttribute[int]) -> dict[str, int]:
    with session_scope() as session:
        return dict(session.execute(select(Task.id, counter).where(counter > 0)).all())
