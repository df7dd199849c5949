"""Rows of moments: the parts of long videos that have vectors of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from index.vector_ids import moment_ids
from service.catalog.tables import Moment, Video

Item = TypeVar("Item")
Span = tuple[float, float]  # start and end, in seconds since the first frame

_ROWS = 10_000  # in one INSERT


def replace_moments(session: Session, task_id: str, spans: Mapping[int, Sequence[Span]]) -> None:
    """Replace all moments of a task.

    Args:
        session: Open transaction.
        spans: Moments by the vector id of their video, in order of time.
    """
    video_ids = select(Video.vector_id).where(Video.task_id == task_id)
    session.execute(delete(Moment).where(Moment.video_vector_id.in_(video_ids)))
    rows = (
        {"vector_id": vector_id, "video_vector_id": video, "start_seconds": start, "end_seconds": end}
        for video, own in spans.items()
        for vector_id, (start, end) in zip(moment_ids(video, len(own)).tolist(), own, strict=True)
    )
    for batch in _batched(rows, _ROWS):
        session.execute(insert(Moment), batch)


def drop_moments(session: Session, video: int) -> None:
    """Delete the moments of a video, given by its vector id."""
    session.execute(delete(Moment).where(Moment.video_vector_id == video))


def moment_spans(session: Session, video: int) -> list[Span]:
    """Return the moments of a video, given by its vector id, in order of time."""
    query = select(Moment.start_seconds, Moment.end_seconds).where(Moment.video_vector_id == video)
    return [(start, end) for start, end in session.execute(query.order_by(Moment.vector_id))]


def _batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
