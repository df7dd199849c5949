"""Transcripts of videos: texts with their times, stored as passages.

A passage is a row with the consecutive cues of about half a minute. It is the unit in which searches find the words of
a query together: long enough for a sentence that several cues divide, and short enough to be the moment that is meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session, aliased

from service.catalog.tables import Passage, Video

TimedText = tuple[float, float, str]  # start and end, in seconds, and text

_SECONDS = 30.0  # from the first start to the last end; a longer cue is a passage of its own
_CHARS = 2000  # as of a caption
_ROWS = 1000  # in one INSERT


def store_transcripts(session: Session, transcripts: Mapping[int, Sequence[TimedText]]) -> None:
    """Replace the transcripts of videos, which are given by their vector IDs; cues are in order of time."""
    rows: list[dict[str, object]] = []
    for video, cues in transcripts.items():
        session.execute(delete(Passage).where(Passage.video_vector_id == video))
        rows += [
            {"video_vector_id": video, "number": number, "cues": passage}
            for number, passage in enumerate(cut_passages(cues))
        ]
    for start in range(0, len(rows), _ROWS):
        session.execute(insert(Passage), rows[start : start + _ROWS])


def copy_transcripts(session: Session, task_id: str) -> None:
    """Give the copies of videos in a task the transcripts of their originals, in place of their own."""
    copies = select(Video.vector_id).where(Video.task_id == task_id, Video.copy_of.is_not(None))
    session.execute(
        delete(Passage)
        .where(Passage.video_vector_id.in_(copies))
        .execution_options(synchronize_session=False)
    )
    original = aliased(Passage)
    session.execute(
        insert(Passage).from_select(
            ["video_vector_id", "number", "cues"],
            select(Video.vector_id, original.number, original.cues)
            .join(original, original.video_vector_id == Video.copy_of)
            .where(Video.task_id == task_id),
        )
    )


def read_transcript(session: Session, video: int) -> list[TimedText]:
    """Return the cues of a video, given by its vector ID, in order of time."""
    passages = session.scalars(
        select(Passage.cues).where(Passage.video_vector_id == video).order_by(Passage.number)
    )
    return [(start, end, text) for passage in passages for start, end, text in passage]


def cut_passages(cues: Sequence[TimedText]) -> Iterator[list[TimedText]]:
    """Yield the cues of each passage."""
    passage: list[TimedText] = []
    chars = 0
    for cue in cues:
        if passage and (cue[1] - passage[0][0] > _SECONDS or chars + len(cue[2]) > _CHARS):
            yield passage
            passage, chars = [], 0
        passage.append(cue)
        chars += len(cue[2]) + 1
    if passage:
        yield passage
