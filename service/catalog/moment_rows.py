"""The moments of videos, as the catalog knows them: which parts of long videos have vectors of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from index.vector_ids import moment_ids
from service.catalog.tables import Moment, Video

__all__ = ["Span", "drop_moments", "moment_spans", "replace_moments"]

Item = TypeVar("Item")
Span = tuple[float, float]  # start and end, in seconds since the first frame

_ROWS = 10_000  # in one INSERT


def replace_moments(session: Session, task_id: str, spans: Mapping[int, Sequence[Span]]) -> None:
    """Replace all moments of a task: by video (its vector id), in order of time."""
    ours = select(Video.vector_id).where(Video.task_id == task_id)
    session.execute(delete(Moment).where(Moment.video_vector_id.in_(ours)))
    rows = (
        {"vector_id": vector_id, "video_vector_id": video, "start_seconds": start, "end_seconds": end}
        for video, theirs in spans.items()
        for vector_id, (start, end) in zip(moment_ids(video, len(theirs)).tolist(), theirs, strict=True)
    )
    for some in _parts(rows, _ROWS):
        session.execute(insert(Moment), some)


def drop_moments(session: Session, video: int) -> None:
    """Forget the moments of a video (its vector id)."""
    session.execute(delete(Moment).where(Moment.video_vector_id == video))


def moment_spans(session: Session, video: int) -> list[Span]:
    """The moments of a video (its vector id), in order of time."""
    query = select(Moment.start_seconds, Moment.end_seconds).where(Moment.video_vector_id == video)
    return [(start, end) for start, end in session.execute(query.order_by(Moment.vector_id))]


def _parts(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part
