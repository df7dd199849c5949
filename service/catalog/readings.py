"""What is read from videos: their file's texts, their speech, and the text in their picture.

The table ``readings`` is the queue of what is still to be read (:mod:`service.reading.reading_worker`). A row that was
cancelled stays, because it knows what a person has corrected.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import ColumnElement, func, insert, literal_column, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import ReadSource, TextSource
from cinestrata_schemas.tasks import ReadingProgress
from index.arrays import batches
from media.reading import available_sources
from service.catalog.database import now
from service.catalog.domain_videos import in_domain
from service.catalog.tables import Passage, Reading, Task, Video
from service.catalog.video_texts import GIVEN_SOURCES
from service.core.settings import settings

MODEL_SOURCES: tuple[ReadSource, ...] = ("speech", "screen")
READ_SOURCES: tuple[ReadSource, ...] = ("file", *MODEL_SOURCES)  # that are queued
_QUEUED_ROWS = 1000  # per INSERT
FILE_SOURCES: tuple[TextSource, ...] = ("subtitles", "chapters")  # that a file carries
# Not a parameter, so that both databases use the index of pending rows.
IS_PENDING = Reading.state == literal_column("'pending'")
KEPT_TIMES = 20  # as long as it took to count the videos of unfinished domains, the counts are kept
_unfinished: tuple[float, dict[str, ReadingProgress]] = 0.0, {}  # with the time until which it is current
IS_NO_COPY = func.coalesce(Video.copy_of, 0) == 0  # in a form for which SQLite leaves that index


def names_to_read(read: str | None) -> set[str]:
    """List what is read from a task's videos, given its field ``read``: file, location, speech, screen."""
    return set((read or settings().read).split(",")) - {"off"}


def readable_sources(read: str | None, sources: Sequence[ReadSource] = READ_SOURCES) -> list[ReadSource]:
    """List the sources that are read from a task's videos, without those that cannot be read here."""
    problems = available_sources(settings().speech_model)
    return [source for source in sources if source in names_to_read(read) and not problems.get(source)]


def is_any_pending(session: Session) -> bool:
    """Check whether a video is still to be read."""
    return session.scalar(select(Reading.source).where(IS_PENDING).limit(1)) is not None


def queue_unread(
    session: Session, videos: ColumnElement[bool], sources: Iterable[ReadSource], *, subtitled: bool = False
) -> None:
    """Queue accepted videos for reading that were not queued before, by sources in the order of ``READ_SOURCES``.

    A file in which probing has found texts is not read again. Unless videos with subtitles are transcribed, too
    (``subtitled``), a video whose file is still to be read is queued for its speech once that has shown that there are
    none.
    """
    of_video = select(Reading.source).where(Reading.video_vector_id == Video.vector_id)
    for source in sources:
        alike = Reading.source.in_((source, *(FILE_SOURCES if source == "file" else ())))
        unread = select(Video.vector_id).where(
            videos, Video.status == "accepted", ~of_video.where(alike).exists()
        )
        if source == "speech" and not subtitled:
            unread_file = of_video.where(Reading.source == "file", IS_PENDING)
            given = Passage.video_vector_id == Video.vector_id, Passage.source.in_(GIVEN_SOURCES)
            unread = unread.where(~unread_file.exists(), ~select(Passage.number).where(*given).exists())
        # Not in one statement: on a table that was small, PostgreSQL would visit all new rows for each video.
        for batch in batches(session.scalars(unread).all(), _QUEUED_ROWS):
            session.execute(
                insert(Reading), [{"video_vector_id": video, "source": source} for video in batch]
            )


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


def read_progress(session: Session, domain_ids: Collection[str]) -> dict[str, ReadingProgress]:
    """Count the videos of learned domains that are read, by the domain's ID; those without any are left out."""
    is_claimed = IS_PENDING & Reading.lease_owner.is_not(None) & (Reading.lease_expires_at > now(session))
    states = {"remaining": IS_PENDING, "failed": Reading.state == "failed", "active": is_claimed}
    is_read = Reading.source.in_(READ_SOURCES) & (Reading.state != "cancelled")
    videos = (
        select(Video.task_id, *(func.count().filter(state).label(name) for name, state in states.items()))
        .join(Reading)
        .where(Video.task_id.in_(domain_ids), is_read)
        .group_by(Video.task_id, Reading.video_vector_id)
        .subquery()
    )
    counts = (func.count().filter(videos.c[name] > 0) for name in states)
    return {
        domain_id: ReadingProgress(
            total=total, done=total - remaining, remaining=remaining, failed=failed, active=bool(active)
        )
        for domain_id, total, remaining, failed, active in session.execute(
            select(videos.c.task_id, func.count(), *counts).group_by(videos.c.task_id)
        )
    }


def read_unfinished(session: Session) -> dict[str, ReadingProgress]:
    """Count like :func:`read_progress` for the domains with videos that are still to be read.

    Counting visits each video of such a domain, so the counts are kept for ``KEPT_TIMES`` as long as it took.
    """
    global _unfinished
    if not is_any_pending(session):
        return {}
    began = time.monotonic()
    if began >= _unfinished[0]:
        _unfinished = began + 60, _unfinished[1]  # for other requests, while this one counts
        pending = select(Task.id).join(Video).join(Reading).where(IS_PENDING, Task.state == "ready")
        progress = read_progress(session, session.scalars(pending.distinct()).all())
        _unfinished = time.monotonic() + KEPT_TIMES * (time.monotonic() - began), progress
    return _unfinished[1]
