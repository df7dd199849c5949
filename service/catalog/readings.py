"""What is read from videos: their file's texts, their speech, and the text in their picture.

The table ``readings`` is the queue of what is still to be read (:mod:`service.reading.reading_worker`). A row that was
cancelled stays, because it knows what a person has corrected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, func, insert, literal, literal_column, or_, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import ReadSource
from cinestrata_schemas.tasks import ReadingProgress
from media.reading import available_sources
from service.catalog.database import id_chunks, now
from service.catalog.domain_videos import in_domain
from service.catalog.tables import Passage, Reading, Video
from service.catalog.video_texts import GIVEN_SOURCES
from service.core.settings import settings

MODEL_SOURCES: tuple[ReadSource, ...] = ("speech", "screen")
READ_SOURCES: tuple[ReadSource, ...] = ("file", *MODEL_SOURCES)  # that are queued
FILE_SOURCES: tuple[ReadSource, ...] = ("subtitles", "chapters")  # that a file carries
# Not a parameter, so that both databases use the index of pending rows.
IS_PENDING = Reading.state == literal_column("'pending'")
IS_NO_COPY = func.coalesce(Video.copy_of, 0) == 0  # in a form for which SQLite leaves that index


def names_to_read(read: str | None) -> set[str]:
    """List what is read from a task's videos, given its field ``read``: file, location, speech, screen."""
    return set((read or settings().read).split(",")) - {"off"}


def readable_sources(read: str | None, sources: Sequence[ReadSource] = READ_SOURCES) -> list[ReadSource]:
    """List the sources that are read from a task's videos, without those that cannot be read here."""
    problems = available_sources(settings().speech_model)
    return [source for source in sources if source in names_to_read(read) and not problems.get(source)]


def queue_unread(
    session: Session, videos: ColumnElement[bool], sources: Iterable[ReadSource], *, subtitled: bool = False
) -> None:
    """Queue videos for reading that were not queued before.

    Args:
        videos: Condition for the videos; only accepted ones are read.
        sources: In the order of ``READ_SOURCES``. A file in which probing has found texts is not read again.
        subtitled: Whether to transcribe the speech of videos with subtitles, too. Otherwise, a video whose file is
            still to be read is queued for its speech once that has shown that there are none.
    """
    of_video = Reading.video_vector_id == Video.vector_id
    for source in sources:
        alike = [Reading.source.in_((source, *(FILE_SOURCES if source == "file" else ())))]
        if source == "speech" and not subtitled:
            alike += [IS_PENDING & (Reading.source == "file")]
        unread = select(Video.vector_id).where(
            videos, Video.status == "accepted", ~select(Reading.source).where(of_video, or_(*alike)).exists()
        )
        if source == "speech" and not subtitled:
            given = Passage.video_vector_id == Video.vector_id, Passage.source.in_(GIVEN_SOURCES)
            unread = unread.where(~select(Passage.number).where(*given).exists())
        rows = unread.add_columns(literal(source))
        session.execute(insert(Reading).from_select(["video_vector_id", "source"], rows))  # with defaults


def change_readings(
    session: Session, domain_id: str, sources: Iterable[ReadSource], states: Sequence[str], **values: object
) -> None:
    """Change a domain's readings in some states. A worker that reads one of the videos stores nothing."""
    videos = select(Video.vector_id).where(in_domain(domain_id), Video.status == "accepted")
    revoked = {"lease_owner": None, "lease_expires_at": None, "fencing_token": 0}
    session.execute(
        update(Reading)
        .where(Reading.source.in_(sources), Reading.state.in_(states), Reading.video_vector_id.in_(videos))
        .values(values | revoked)
        .execution_options(synchronize_session=False)
    )


def read_progress(
    session: Session, domain_ids: Collection[str], *, only_unfinished: bool = False
) -> dict[str, ReadingProgress]:
    """Count the videos of domains that are read, by the domain's ID; those without any are left out."""
    at = now(session)
    is_read = Reading.source.in_(READ_SOURCES) & (Reading.state != "cancelled") & IS_NO_COPY
    rows = select(Video.task_id).join(Reading).where(is_read)
    progress: dict[str, ReadingProgress] = {}
    videos = func.count(Reading.video_vector_id.distinct())
    if only_unfinished and session.scalar(select(Reading.source).where(IS_PENDING).limit(1)) is None:
        return progress
    for chunk in id_chunks(list(domain_ids)):
        asked = rows.where(Video.task_id.in_(chunk))
        if only_unfinished:
            asked = asked.where(Video.task_id.in_(session.scalars(asked.where(IS_PENDING).distinct()).all()))
        counts = asked.add_columns(
            videos,
            videos.filter(IS_PENDING),
            videos.filter(Reading.state == "failed"),
            videos.filter(IS_PENDING, Reading.lease_owner.is_not(None), Reading.lease_expires_at > at),
        )
        for domain_id, total, remaining, failed, claimed in session.execute(counts.group_by(Video.task_id)):
            progress[domain_id] = ReadingProgress(
                total=total, done=total - remaining, remaining=remaining, failed=failed, active=bool(claimed)
            )
    return progress
