"""Timed texts of videos, by source: what people, files, speech recognition and text recognition say, and when.

A passage is a row with consecutive cues of one source, about half a minute long. Searches look for a query's words
within one passage: it is long enough for a sentence split into several cues, and short enough to be the moment that was
meant. A video's passages are numbered from 0, by source and then by time.

The table ``readings`` has a row for each source that is read from the video's file. Texts of other sources were given,
and no reading replaces them. What a person corrects or deletes is kept as a correction, so that the next reading does
not bring it back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, case, delete, insert, literal, null, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from cinestrata_schemas.choice_types import TextSource
from index.arrays import Ids, batches, moment_numbers, video_ids_of
from media.timed_texts import SOURCES
from service.catalog.database import id_chunks
from service.catalog.tables import Passage, Reading, Video

TimedText = tuple[float, float, str]  # start and end, in seconds since the first frame, and text
_PASSAGE_SECONDS = 30.0  # from the first start to the last end; a longer cue is its own passage
_PASSAGE_CHARS = 2000  # as for a caption
_PASSAGE_ROWS = 1000  # per INSERT
_PASSAGE_KEYS = 250  # per SELECT
GIVEN_SOURCES: tuple[TextSource, ...] = ("person", "subtitles")  # unless the file itself carries them
_BY_MODELS = {"speech", "screen"}  # sources that a model reads, rather than the file's own streams
_SHORTEST = 0.001  # seconds
_SIMILAR = 0.5  # ratio of a line on the screen to a corrected one; other lines are shown at the same time


class SourcedText(NamedTuple):
    """A timed text with its source. In an edit, None is the source of an equal stored text, or else a person."""

    start: float
    end: float
    text: str
    source: TextSource | None

    @property
    def id(self) -> str:
        """ID among the texts of a video, which changes with the text."""
        return hashlib.sha256(repr(tuple(self)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class SourcedCues(NamedTuple):
    """Cues of a passage with their source."""

    source: TextSource
    cues: Sequence[TimedText]


def store_texts(
    session: Session, texts: Mapping[int, Mapping[TextSource, Sequence[TimedText]]], *, is_read: bool = False
) -> None:
    """Replace videos' texts of some sources, by vector ID and in order of time; those of other sources stay.

    If a reading found them (``is_read``), what a person has corrected is left out.
    """
    for chunk in id_chunks(list(texts)):
        readings = select(Reading).where(Reading.video_vector_id.in_(chunk if is_read else ()))
        corrections = {(row.video_vector_id, row.source): row.corrected for row in session.scalars(readings)}
        stored: dict[int, dict[str, Sequence[TimedText]]] = {video: {} for video in chunk}
        for row in _passages(session, chunk):
            stored[row.video_vector_id].setdefault(row.source, []).extend(row.cues)  # type: ignore[attr-defined]
        session.execute(delete(Passage).where(Passage.video_vector_id.in_(chunk)))
        rows: list[dict[str, Any]] = []
        for video, cues_of in stored.items():
            for source, cues in texts[video].items():
                corrected = corrections.get((video, source), ())
                cues_of[source] = [
                    # What is shown in one frame lasts no time, which an edit of the transcript would refuse.
                    (start, max(end, start + _SHORTEST), text)
                    for start, end, text in cues
                    if not _is_corrected((start, end, text), source, corrected)
                ]
            passages = ((s, passage) for s in SOURCES for passage in cut_passages(cues_of.get(s, ())))
            rows += [
                {"video_vector_id": video, "number": number, "source": source, "cues": cues}
                for number, (source, cues) in enumerate(passages)
            ]
        for batch in batches(rows, _PASSAGE_ROWS):
            session.execute(insert(Passage), batch)


def read_texts(session: Session, video: int) -> list[SourcedText]:
    """Read a video's texts, given its vector ID, in order of time."""
    rows = _passages(session, [video])
    return sorted((SourcedText(*cue, row.source) for row in rows for cue in row.cues), key=lambda t: t[:2])


def edit_texts(session: Session, video: int, texts: Iterable[SourcedText]) -> bool:
    """Replace a video's texts by those that a person sends; whether they differ from the stored ones.

    A text that is stored keeps its source, and one that is not is a person's, or of subtitles that were given. Texts of
    other sources that are missing count as corrected.
    """
    stored = read_texts(session, video)
    sources = {text[:3]: text.source for text in reversed(stored)}
    before = set(stored)
    edited: list[SourcedText] = []
    for text in texts:
        source = text.source if text in before or text.source == "subtitles" else None
        edited.append(text._replace(source=source or sources.get(text[:3]) or "person"))
    remaining = set(edited)
    removed = [text for text in stored if text not in remaining]
    if not removed and len(edited) == len(stored):
        return False
    for reading in session.scalars(select(Reading).where(Reading.video_vector_id == video)):
        corrected = [text[:3] for text in removed if text.source == reading.source]
        reading.corrected = [*reading.corrected, *corrected]
    by_source = group_texts(edited)
    store_texts(session, {video: {source: by_source.get(source, []) for source in SOURCES}})
    return True


def group_texts(
    texts: Iterable[SourcedText], sources: Collection[str] = SOURCES
) -> dict[TextSource, list[TimedText]]:
    """Group texts by source, in order, without other sources. Texts without a source are subtitles."""
    grouped: dict[TextSource, list[TimedText]] = {}
    for text in texts:
        if (source := text.source or "subtitles") in sources:
            grouped.setdefault(source, []).append(text[:3])
    return grouped


def copy_texts(session: Session, task_id: str) -> None:
    """Give a task's copies the texts of their originals, and the state of their reading.

    A copy with other content takes over what was given, keeps what its own file carries otherwise, and is read again.
    """
    original = aliased(Video)
    is_same = or_(Video.content_hash.is_(None), Video.content_hash == original.content_hash)
    pairs = session.execute(
        select(Video.vector_id, original.vector_id, is_same)
        .join(original, original.vector_id == Video.copy_of)
        .where(Video.task_id == task_id)
    ).all()
    for chunk in id_chunks([copy for copy, _, is_equal in pairs if is_equal]):
        for table in (Passage, Reading):
            session.execute(delete(table).where(table.video_vector_id.in_(chunk)))
            _copy_rows(session, table, Video.vector_id.in_(chunk))
    for copy, source in [(copy, source) for copy, source, is_equal in pairs if not is_equal]:
        carried = group_texts(read_texts(session, copy), _sources_read(session, copy) - _BY_MODELS)
        given = group_texts(read_texts(session, source), set(SOURCES) - _sources_read(session, source))
        store_texts(session, {copy: {name: given.get(name) or carried.get(name, []) for name in SOURCES}})
        is_replaced = Reading.source.in_({*given, *_BY_MODELS})
        session.execute(delete(Reading).where(Reading.video_vector_id == copy, is_replaced))
        is_copied = (Video.vector_id == copy) & Reading.source.in_(_BY_MODELS)
        state = case((Reading.state == "cancelled", "cancelled"), else_="pending")
        _copy_rows(session, Reading, is_copied, state=state, attempts=literal(0), model=null(), note=null())


def _copy_rows(
    session: Session, table: type[Passage] | type[Reading], is_copy: ColumnElement[bool], **changed: Any
) -> None:
    """Copy the rows of originals to their copies, without leases."""
    names = [column.name for column in table.__table__.columns if not column.name.startswith("lease")]
    values = {name: getattr(table, name) for name in names} | changed | {"video_vector_id": Video.vector_id}
    copied = select(*(values[name] for name in names)).join(Video, Video.copy_of == table.video_vector_id)
    session.execute(insert(table).from_select(names, copied.where(is_copy)))


def _sources_read(session: Session, video: int) -> set[str]:
    return set(session.scalars(select(Reading.source).where(Reading.video_vector_id == video)))


def read_passages(session: Session, passages: Ids) -> dict[int, SourcedCues]:
    """Read passages by ID (:mod:`index.arrays`), each with the next passage's first cue."""
    keys = list(zip(video_ids_of(passages).tolist(), moment_numbers(passages).tolist(), strict=True))
    rows: dict[tuple[int, int], SourcedCues] = {}
    wanted = sorted({key for video, number in keys for key in ((video, number), (video, number + 1))})
    for chunk in batches(wanted, _PASSAGE_KEYS):
        query = select(Passage).where(tuple_(Passage.video_vector_id, Passage.number).in_(chunk))
        stored = session.scalars(query)
        rows |= {(row.video_vector_id, row.number): SourcedCues(row.source, row.cues) for row in stored}
    return {
        passage: with_following(rows[key], rows.get((key[0], key[1] + 1)))
        for passage, key in zip(passages.tolist(), keys, strict=True)
        if key in rows
    }


def with_following(passage: SourcedCues, following: SourcedCues | None) -> SourcedCues:
    """Add the first cue of the next passage of the source, where a sentence may continue, to a passage."""
    if following is None or following.source != passage.source:
        return passage
    return passage._replace(cues=[*passage.cues, *following.cues[:1]])


def cut_passages(cues: Sequence[TimedText]) -> Iterator[list[TimedText]]:
    """Split cues into passages."""
    passage: list[TimedText] = []
    chars = 0
    for cue in cues:
        if passage and (cue[1] - passage[0][0] > _PASSAGE_SECONDS or chars + len(cue[2]) > _PASSAGE_CHARS):
            yield passage
            passage, chars = [], 0
        passage.append(cue)
        chars += len(cue[2]) + 1
    if passage:
        yield passage


def _passages(session: Session, videos: Collection[int]) -> Iterable[Passage]:
    query = select(Passage).where(Passage.video_vector_id.in_(videos))
    return session.scalars(query.order_by(Passage.video_vector_id, Passage.number))


def _is_corrected(cue: TimedText, source: str, corrections: Sequence[TimedText]) -> bool:
    """Check whether a cue says what a person has corrected: most of the shorter one is at the same time."""

    def is_same(start: float, end: float, text: str) -> bool:
        overlap = min(cue[1], end) - max(cue[0], start)
        if overlap <= 0.5 * min(cue[1] - cue[0], end - start):
            return False
        return source != "screen" or SequenceMatcher(None, cue[2], text).ratio() >= _SIMILAR

    return any(is_same(*corrected) for corrected in corrections)
