"""The queue of videos that are still to be read: for their speech, and for the text in their picture.

The table ``readings`` is the queue. A worker claims the rows of some videos by one conditional update, with a lease and
a fencing token, and stores the texts of each video in a transaction that checks them. A row that was cancelled stays,
because it knows what a person has corrected.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, insert, literal, literal_column, or_, select, update
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import TextSource
from cinestrata_schemas.tasks import ReadingProgress
from media.reading import VideoReading, available_sources
from service.catalog.database import id_chunks, now, session_scope
from service.catalog.domain_videos import in_domain, number_edits
from service.catalog.leases import Lease
from service.catalog.tables import Passage, Reading, Task, Video
from service.catalog.video_texts import GIVEN_SOURCES, TimedText, store_texts
from service.core.errors import CinestrataError, LeaseLost, SourceUnavailable, TaskInterruption
from service.core.settings import settings

MODEL_SOURCES: tuple[TextSource, ...] = ("speech", "screen")
_BATCH_ROWS = 16  # per claim
_MAX_ATTEMPTS = 3  # of a video that may kill the worker
_PAUSE_SECONDS = 600.0  # of videos whose source is unavailable
# Not a parameter, so that both databases use the index of pending rows.
IS_PENDING = Reading.state == literal_column("'pending'")
_IS_NO_COPY = func.coalesce(Video.copy_of, 0) == 0  # in a form for which SQLite leaves that index


def names_to_read(read: str | None) -> set[str]:
    """List what is read from a task's videos, given its field ``read``: file, location, speech, screen."""
    return set((read or settings().read).split(",")) - {"off"}


def model_sources(read: str | None) -> list[TextSource]:
    """List the sources that a model reads from a task's videos, without those that cannot be read here."""
    problems = available_sources(settings().speech_model)
    return [source for source in MODEL_SOURCES if source in names_to_read(read) and not problems[source]]


def queue_unread(
    session: Session, videos: ColumnElement[bool], sources: Iterable[TextSource], *, subtitled: bool = False
) -> None:
    """Queue videos for reading that were not queued before.

    Args:
        videos: Condition for the videos; only accepted ones are read.
        subtitled: Whether to transcribe the speech of videos with subtitles, too.
    """
    for source in sources:
        of_video = Reading.video_vector_id == Video.vector_id, Reading.source == source
        unread = select(Video.vector_id).where(
            videos, Video.status == "accepted", ~select(Reading.source).where(*of_video).exists()
        )
        if source == "speech" and not subtitled:
            given = Passage.video_vector_id == Video.vector_id, Passage.source.in_(GIVEN_SOURCES)
            unread = unread.where(~select(Passage.number).where(*given).exists())
        rows = unread.add_columns(literal(source))
        session.execute(insert(Reading).from_select(["video_vector_id", "source"], rows))  # with defaults


def change_readings(
    session: Session, domain_id: str, sources: Iterable[TextSource], states: Sequence[str], **values: object
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
    is_read = Reading.source.in_(MODEL_SOURCES) & (Reading.state != "cancelled") & _IS_NO_COPY
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


class ReadingJob(NamedTuple):
    """A video to read: sources with the model that is wanted for each; None is the configured one."""

    vector_id: int
    video_id: str
    uri: str
    models: dict[TextSource, str | None]


class ReadingClaim(Lease):
    """The lease of some claimed videos. As a context manager, it gives back what was not read."""

    def __init__(self, owner: str, token: int, jobs: Sequence[ReadingJob]) -> None:
        is_held = IS_PENDING & (Reading.fencing_token == token)
        super().__init__(f"Reading by {owner}", token, Reading.lease_expires_at, is_held)
        self.jobs = jobs  # first added first

    def store(self, job: ReadingJob, reading: VideoReading) -> None:
        """Store what a video says, unless another worker reads it now, it was cancelled, or the video was deleted."""
        with session_scope(write=True) as session:
            of_task = select(Task.id).join(Video).where(Video.vector_id == job.vector_id)
            session.scalars(of_task.with_for_update(of=Task)).all()  # transactions lock tasks first
            of_video = Reading.video_vector_id == job.vector_id
            rows = session.scalars(select(Reading).where(of_video, self._is_held).with_for_update()).all()
            texts: dict[TextSource, Sequence[TimedText]] = {}
            for row in rows:
                result = reading[row.source]
                row.state, row.note = "failed" if result.failed else "done", result.note
                row.lease_owner = row.lease_expires_at = None
                if not result.failed:
                    row.model = result.model or None
                    texts[row.source] = result.texts
            session.flush()
            stored = Passage.video_vector_id == job.vector_id, Passage.source.in_(list(texts))
            if any(texts.values()) or session.scalar(select(func.count()).where(*stored)):
                store_texts(session, {job.vector_id: texts}, is_read=True)
                number_edits(session, [job.vector_id])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        super().__exit__(kind, error, trace)
        if isinstance(error, LeaseLost):
            return
        is_innocent = error is None or isinstance(error, (TaskInterruption, SourceUnavailable))
        pause = _PAUSE_SECONDS if isinstance(error, SourceUnavailable) else 0.0
        _give_back(self._is_held, pause, attempts=int(not is_innocent))


def give_back_readings(owner: str) -> None:
    """Give back the videos of a worker that stops; it stores nothing of them afterwards."""
    _give_back(IS_PENDING & (Reading.lease_owner == owner[:255]))


def _give_back(which: ColumnElement[bool], pause: float = 0.0, attempts: int = 0) -> None:
    """End leases of readings, after a pause in seconds; ``attempts`` is 1 if the attempt counts."""
    with suppress(CinestrataError), session_scope(write=True) as session:  # the lease expires anyway
        until = now(session) + timedelta(seconds=pause)
        ended = {"lease_owner": None, "lease_expires_at": until, "fencing_token": 0}
        session.execute(
            update(Reading)
            .where(which)
            .values(**ended, attempts=Reading.attempts - 1 + attempts)
            .execution_options(synchronize_session=False)
        )


def claim_readings(owner: str, sources: Collection[TextSource]) -> ReadingClaim | None:
    """Claim some videos whose sources are to be read; None without any.

    A video that was claimed before, and may have killed its worker, is claimed alone.
    """
    with session_scope() as session:  # without a lock while there is nothing to do
        if session.scalar(select(Reading.source).where(IS_PENDING).limit(1)) is None:
            return None
    token = secrets.randbits(62)
    jobs: dict[int, ReadingJob] = {}
    with session_scope(write=True) as session:
        at = now(session)
        is_free = or_(Reading.lease_expires_at.is_(None), Reading.lease_expires_at <= at)
        is_due = [IS_PENDING, Reading.source.in_(sources), is_free]
        session.execute(
            update(Reading)
            .where(*is_due, Reading.attempts >= _MAX_ATTEMPTS)
            .values(state="failed", note=f"The worker stopped {_MAX_ATTEMPTS} times while it read the video.")
            .execution_options(synchronize_session=False)
        )
        due = session.execute(
            select(Reading, Video.id, Video.uri)
            .join(Video, Video.vector_id == Reading.video_vector_id)
            .where(*is_due, _IS_NO_COPY)  # a copy takes over what its original says
            .order_by(Reading.attempts, Reading.video_vector_id)
            .limit(_BATCH_ROWS)
            .with_for_update(of=Reading, skip_locked=True)
        )
        for reading, video_id, uri in due.all():
            vector_id = reading.video_vector_id
            if reading.attempts and jobs and vector_id not in jobs:
                break
            job = jobs.setdefault(vector_id, ReadingJob(vector_id, video_id, uri, {}))
            job.models[reading.source] = reading.model
            reading.lease_owner, reading.fencing_token = owner[:255], token
            reading.lease_expires_at = at + timedelta(seconds=settings().lease_seconds)
            reading.attempts += 1
    return ReadingClaim(owner, token, list(jobs.values())) if jobs else None
