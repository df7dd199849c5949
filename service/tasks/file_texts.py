"""Store what videos' files carry besides pictures and sound: subtitles, chapters and metadata.

Subtitles that were given with a video replace those in its file, and so do metadata values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import TextSource
from cinestrata_schemas.videos import MAX_CUES
from media.timed_texts import FileTexts
from service.catalog.readings import FILE_SOURCES, names_to_read
from service.catalog.tables import Passage, Reading, Task, Video
from service.catalog.video_texts import GIVEN_SOURCES, TimedText, store_texts
from service.core.errors import InvalidInput
from service.tasks.ingestion_checks import validate_edit


def store_file_texts(session: Session, task_id: str, videos: Mapping[Video, FileTexts | None]) -> None:
    """Store what the files of probed videos carry, in the transaction that stores that they were probed.

    What an earlier version of a file carried goes. A task that reads no files stores nothing.
    """
    names = names_to_read(session.get_one(Task, task_id).read)
    if "file" not in names or not videos:
        return
    ids = [video.vector_id for video in videos]
    rows = select(Reading.video_vector_id, Reading.source).where(Reading.video_vector_id.in_(ids))
    carried = set(session.execute(rows).all())
    by_people = select(Passage.video_vector_id).where(Passage.source.in_(GIVEN_SOURCES))
    given = set(session.scalars(by_people.where(Passage.video_vector_id.in_(ids))))
    stored: dict[int, dict[TextSource, list[TimedText]]] = {}
    for video, texts in videos.items():
        texts = texts or FileTexts()
        for source, cues in zip(FILE_SOURCES, (texts.subtitles, texts.chapters), strict=True):
            key = video.vector_id, source
            if source == "subtitles" and video.vector_id in given and key not in carried:
                continue
            note = "; ".join(texts.notes) if source == "subtitles" else ""
            if cues or note or key in carried:
                stored.setdefault(video.vector_id, {})[source] = list(cues[:MAX_CUES])
                row = Reading(video_vector_id=video.vector_id, source=source, state="done", note=note or None)
                session.merge(row)
        extra = dict(_facts(texts, with_location="location" in names)) | video.extra
        with suppress(InvalidInput):  # too long, or nothing that can be stored
            validate_edit((), extra)
            video.extra = extra
    session.flush()
    store_texts(session, stored, is_read=True)


def _facts(texts: FileTexts, *, with_location: bool) -> Iterator[tuple[str, Any]]:
    """Yield metadata values: texts to search, and facts to filter by."""
    for name, text in texts.tags.items():
        if with_location or name != "location":
            yield name, text
    if texts.created:
        yield "created", texts.created
        if texts.created[:4].isdecimal():
            yield "year", int(texts.created[:4])
    for name in ("camera", "language"):
        if value := getattr(texts, name):
            yield name, value
