"""Samples of a domain's captions that are searched like queries."""

from __future__ import annotations

from itertools import zip_longest
from typing import NamedTuple

from sqlalchemy import ColumnElement, String, cast, func, select
from sqlalchemy.orm import Session

from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.catalog.task_names import require_task
from service.core import request_limits
from service.core.errors import Conflict

MAX_SAMPLED_CAPTIONS = 128  # about a second of searches with the default backbone

# Held-out captions come first: the ranks of learned captions are better than those of new queries.
_SPLITS = ("test", "val", "appended", "train")


class SampledCaption(NamedTuple):
    """A caption and its video."""

    text: str
    vector_id: int
    video_id: str


class CaptionSample(NamedTuple):
    """Captions of one split of a domain.

    Attributes:
        task_id: Identifier of the domain's task.
        task_name: Name of the domain's task.
        split: Split of the videos; None where no video of the domain has a caption.
        videos: Number of videos of the split that have captions.
        captions: The sampled captions.
    """

    task_id: str
    task_name: str
    split: str | None
    videos: int
    captions: tuple[SampledCaption, ...]


def sample_captions(name_or_id: str, limit: int = MAX_SAMPLED_CAPTIONS) -> CaptionSample:
    """Return up to ``limit`` captions of a domain, from the first split that has any.

    The videos are ordered by the hash of their content, so the sample is unrelated to the order of arrival and the same
    for each call. Further captions of a video follow after the first captions of all videos.

    Args:
        name_or_id: Name or identifier of a domain's task.

    Raises:
        NotFound: There is no such task.
        Conflict: The task is an append, or is not learned.
    """
    with session_scope() as session:
        task = require_task(session, name_or_id)
        if task.target_id is not None:
            raise Conflict(f"Task {task.id!r} is an append; its videos belong to task {task.target_id!r}.")
        if task.state != "ready":
            raise Conflict(f"Task {task.name!r} is not learned yet: its state is {task.state!r}.")
        for split in _SPLITS:
            condition = _captioned(task.id, split)
            videos = session.scalar(select(func.count()).select_from(Video).where(condition)) or 0
            if captions := _read_captions(session, condition, limit) if videos else ():
                return CaptionSample(task.id, task.name, split, videos, captions)
        return CaptionSample(task.id, task.name, None, 0, ())


def _captioned(task_id: str, split: str) -> ColumnElement[bool]:
    # An empty list of captions is stored as the text "[]" on both databases.
    return (
        (Video.task_id == task_id)
        & (Video.status == "accepted")
        & (Video.effective_split == split)
        & (cast(Video.captions, String) != "[]")
    )


def _read_captions(
    session: Session, condition: ColumnElement[bool], limit: int
) -> tuple[SampledCaption, ...]:
    rows = session.execute(
        select(Video.vector_id, Video.id, Video.captions)
        .where(condition)
        .order_by(Video.content_hash, Video.vector_id)
        .limit(limit)
    )
    by_video = [
        [SampledCaption(text, vector_id, video_id) for text in map(_query_text, captions) if text]
        for vector_id, video_id, captions in rows
    ]
    rounds = (caption for row in zip_longest(*by_video) for caption in row if caption is not None)
    return tuple(rounds)[:limit]


def _query_text(caption: str) -> str:
    """The caption as a query, which may be shorter than a caption."""
    return caption[: request_limits.MAX_QUERY_CHARS].strip()
