"""Counters of the edits of a domain's videos, which version the caches of searches.

Each process compares the counters with those that its caches were computed for. The counters are increased in the
transaction that changes the videos, so rows that are read after a counter are at least as new as the counter.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.catalog.database import session_scope
from service.catalog.tables import Task

__all__ = ["count_edit", "read_caption_edits", "read_metadata_edits"]


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
