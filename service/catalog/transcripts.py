"""Store videos' transcripts: timed texts, in passages.

A passage is a row with consecutive cues of about half a minute. Searches look for a query's words within one passage:
it is long enough for a sentence split into several cues, and short enough to be the moment that was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import delete, insert, select, tuple_
from sqlalchemy.orm import Session, aliased

from index.arrays import Ids, batches
from index.vector_ids import moment_numbers, video_ids_of
from service.catalog.tables import Passage, Video

TimedText = tuple[float, float, str]  # start and end, in seconds, and text

_SECONDS = 30.0  # from the first start to the last end; a longer cue is its own passage
_CHARS = 2000  # as for a caption
_ROWS = 1000  # per INSERT
_KEYS = 250  # per SELECT


def store_transcripts(session: Session, transcripts: Mapping[int, Sequence[TimedText]]) -> None:
    """Replace videos' transcripts, given by vector ID; cues are in order of time."""
    rows: list[dict[str, object]] = []
    for video, cues in transcripts.items():
        session.execute(delete(Passage).where(Passage.video_vector_id == video))
        rows += [
            {"video_vector_id": video, "number": number, "cues": passage}
            for number, passage in enumerate(cut_passages(cues))
        ]
    for batch in batches(rows, _ROWS):
        session.execute(insert(Passage), batch)


def copy_transcripts(session: Session, task_id: str) -> None:
    """Replace the transcripts of a task's copies with those of their originals."""
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
    """Read a video's cues, given its vector ID, in order of time."""
    passages = session.scalars(
        select(Passage.cues).where(Passage.video_vector_id == video).order_by(Passage.number)
    )
    return [(start, end, text) for passage in passages for start, end, text in passage]


def read_passages(session: Session, passages: Ids) -> dict[int, list[TimedText]]:
    """Read the cues of passages by ID, each with the next passage's first cue.

    Args:
        passages: IDs, the same as those of moments (:mod:`index.vector_ids`).
    """
    keys = list(zip(video_ids_of(passages).tolist(), moment_numbers(passages).tolist(), strict=True))
    cues: dict[tuple[int, int], list[TimedText]] = {}
    wanted = sorted({key for video, number in keys for key in ((video, number), (video, number + 1))})
    for chunk in batches(wanted, _KEYS):
        query = select(Passage).where(tuple_(Passage.video_vector_id, Passage.number).in_(chunk))
        cues |= {(row.video_vector_id, row.number): row.cues for row in session.scalars(query)}
    return {
        passage: with_following(cues[key], cues.get((key[0], key[1] + 1), []))
        for passage, key in zip(passages.tolist(), keys, strict=True)
        if key in cues
    }


def with_following(cues: Sequence[TimedText], following: Sequence[TimedText]) -> list[TimedText]:
    """Add the next passage's first cue, where a sentence may continue, to a passage's cues."""
    return [*cues, *following[:1]]


def cut_passages(cues: Sequence[TimedText]) -> Iterator[list[TimedText]]:
    """Split cues into passages."""
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
