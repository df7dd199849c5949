"""The thread of a CPU worker that reads videos while no video is to be probed.

An hour of video is read for many minutes, so this is no job of the worker's queue, which has one process: the thread
waits for a child process with the lowest priority, and the worker probes meanwhile. No video is begun while others are
to be probed, so that new domains become searchable as fast as without reading.

A worker claims the rows of some videos by one conditional update, with a lease and a fencing token, and stores the
texts of each video in a transaction that checks them.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple

import structlog
from sqlalchemy import ColumnElement, func, or_, select, update

from cinestrata_schemas.choice_types import ReadSource, TextSource
from cinestrata_schemas.uris import redact_uri
from media import DecoderUnavailable, MediaError, VideoDecoder, VideoLimits
from media.child_process import LOWEST_PRIORITY
from media.reading import SourceReading, VideoReader
from media.timed_texts import FileTexts
from service.catalog import readings
from service.catalog.database import now, session_scope
from service.catalog.domain_videos import count_edit
from service.catalog.leases import Lease
from service.catalog.tables import Passage, Reading, Task, Video
from service.catalog.video_texts import TimedText, store_texts
from service.core import errors, request_limits
from service.core.settings import settings
from service.storage.library_files import local_video
from service.tasks.file_texts import store_file_texts

_POLL_SECONDS = 5.0
_STOP_SECONDS = 3.0  # that a stop waits for the child to report progress; it ends with its worker
_BATCH_ROWS = 16  # per claim
_MAX_ATTEMPTS = 8  # of a video that may kill the worker, although a child reads it
_PAUSE_SECONDS = 600.0  # of videos whose source is unavailable

log = structlog.get_logger(__name__)


class ReadingThread(threading.Thread):
    """Reads queued videos, until it is stopped; ``owner`` names the worker in leases."""

    def __init__(self, owner: str) -> None:
        super().__init__(name="reading", daemon=True)
        self._owner = owner
        self._stop_requested = threading.Event()

    def run(self) -> None:
        """Look for videos to read every few seconds."""
        while not self._stop_requested.wait(_POLL_SECONDS):
            try:
                read_queued(self._owner)
            except errors.TaskInterruption:
                continue  # another worker reads the videos, or this one is stopping
            except errors.CinestrataError as error:
                log.warning("reading_postponed", reason=str(error))
            except Exception:
                log.exception("reading_failed")

    def stop(self) -> None:
        """End after the current step of the reading. If that takes long, give the videos back, and do not wait."""
        self._stop_requested.set()
        if self.is_alive():
            self.join(_STOP_SECONDS)
            _give_back(readings.IS_PENDING & (Reading.lease_owner == self._owner[:255]))


def read_queued(owner: str) -> int:
    """Read queued videos until none is left, or others are to be probed; returns the number of videos.

    Raises TaskInterruption if another worker has claimed the videos, or this one is stopping; SourceUnavailable if the
    reader does not start, or the source of a video is unreachable.
    """
    sources = readings.readable_sources(",".join(readings.READ_SOURCES))
    videos = 0
    limits = VideoLimits(max_bytes=request_limits.MAX_VIDEO_BYTES)
    with VideoReader() as reader:
        while not _probing_is_due() and (claim := claim_readings(owner, sources)) is not None:
            with claim, VideoDecoder(limits, nice=LOWEST_PRIORITY) as decoder:
                for job in claim.jobs:
                    if _probing_is_due():
                        return videos
                    claim.tick()
                    claim.store(job, *_read(reader, decoder, job, claim.tick))
                    videos += 1
    return videos


def _read(
    reader: VideoReader, decoder: VideoDecoder, job: ReadingJob, report_alive: Callable[[], None]
) -> tuple[Mapping[ReadSource, SourceReading], FileTexts | None]:
    name = redact_uri(job.uri)
    try:
        with local_video(job.uri) as path:
            if "file" in job.models:
                carried = decoder.decode(path, frames=1, size=8, name=name).texts
                return {"file": SourceReading([])}, carried
            model = job.models.get("speech") or settings().speech_model
            sources = [source for source in job.models if source != "file"]
            reading = reader.read(path, sources, speech_model=model, name=name, progress=report_alive)
            return dict(reading.items()), None
    except DecoderUnavailable as error:
        raise errors.DecoderOutage(f"This worker's reader of videos can't be used: {error}.") from error
    except MediaError as error:
        return {source: SourceReading([], note=error.reason, failed=True) for source in job.models}, None


def _probing_is_due() -> bool:
    """Whether videos of a task are probed, or wait for that; not while their source is unavailable."""
    with session_scope() as session:
        is_postponed = Task.lease_owner.is_(None) & (Task.lease_expires_at > now(session))
        query = select(Task.id).where(Task.state.in_(("queued", "probing")), Task.probed_at.is_(None))
        waits = or_(Task.lease_expires_at.is_(None), ~is_postponed)
        return session.scalar(query.where(waits).limit(1)) is not None


class ReadingJob(NamedTuple):
    """A video to read: its file, or sources with the model that is wanted for each; None is the configured one."""

    vector_id: int
    uri: str
    models: dict[ReadSource, str | None]


class ReadingClaim(Lease):
    """The lease of some claimed videos. As a context manager, it gives back what was not read."""

    def __init__(self, owner: str, token: int, jobs: Sequence[ReadingJob]) -> None:
        is_held = readings.IS_PENDING & (Reading.fencing_token == token)
        super().__init__(f"Reading by {owner}", token, Reading.lease_expires_at, is_held)
        self.jobs = jobs  # first added first

    def store(
        self, job: ReadingJob, reading: Mapping[ReadSource, SourceReading], carried: FileTexts | None = None
    ) -> None:
        """Store what a video says, by source, and what its file carries, if that was read.

        Nothing is stored if another worker reads the video now, it was cancelled, or the video was deleted.
        """
        with session_scope(write=True) as session:
            of_task = select(Task).join(Video).where(Video.vector_id == job.vector_id)
            task = session.scalars(of_task.with_for_update(of=Task)).one_or_none()  # locked first
            of_video = Reading.video_vector_id == job.vector_id
            rows = session.scalars(select(Reading).where(of_video, self._is_held).with_for_update()).all()
            if task is None or not rows:
                return
            texts: dict[TextSource, Sequence[TimedText]] = {}
            for row in rows:
                result = reading[row.source]
                row.state, row.note = "failed" if result.failed else "done", result.note
                row.lease_owner = row.lease_expires_at = None
                if not result.failed and row.source != "file":
                    row.model = result.model or None
                    texts[row.source] = result.texts
            session.flush()
            video = session.get_one(Video, job.vector_id)
            metadata = video.extra
            if carried is not None:
                store_file_texts(session, task.id, {video: carried})
            if "file" in reading:  # which has shown whether there are subtitles
                readings.queue_unread(
                    session, Video.vector_id == video.vector_id, readings.readable_sources(task.read)
                )
            stored = Passage.video_vector_id == video.vector_id, Passage.source.in_(list(texts))
            is_changed = any(texts.values()) or bool(session.scalar(select(func.count()).where(*stored)))
            if is_changed:
                store_texts(session, {video.vector_id: texts}, is_read=True)
            if is_changed or carried not in (None, FileTexts()):
                has_metadata = video.extra != metadata
                count_edit(session, task.id, [video.vector_id], captions=False, metadata=has_metadata)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        super().__exit__(kind, error, trace)
        if isinstance(error, errors.LeaseLost):
            return
        is_innocent = error is None or isinstance(error, (errors.TaskInterruption, errors.SourceUnavailable))
        pause = _PAUSE_SECONDS if isinstance(error, errors.SourceUnavailable) else 0.0
        _give_back(self._is_held, pause, attempts=int(not is_innocent))


def _give_back(which: ColumnElement[bool], pause: float = 0.0, attempts: int = 0) -> None:
    """End leases of readings, whose worker stores nothing afterwards; ``attempts`` is 1 if this one counts."""
    with suppress(errors.CinestrataError), session_scope(write=True) as session:  # the lease expires anyway
        until = now(session) + timedelta(seconds=pause)
        ended = {"lease_owner": None, "lease_expires_at": until, "fencing_token": 0}
        session.execute(
            update(Reading)
            .where(which)
            .values(**ended, attempts=Reading.attempts - 1 + attempts)
            .execution_options(synchronize_session=False)
        )


def claim_readings(owner: str, sources: Collection[ReadSource]) -> ReadingClaim | None:
    """Claim some videos to read, or one that was claimed before and may have killed its worker; None without any."""
    with session_scope() as session:  # without a lock while there is nothing to do
        if not readings.is_any_pending(session):
            return None
    token = secrets.randbits(62)
    jobs: dict[tuple[int, bool], ReadingJob] = {}
    with session_scope(write=True) as session:
        at = now(session)
        is_free = or_(Reading.lease_expires_at.is_(None), Reading.lease_expires_at <= at)
        is_due = [readings.IS_PENDING, Reading.source.in_(sources), is_free]
        session.execute(
            update(Reading)
            .where(*is_due, Reading.attempts >= _MAX_ATTEMPTS)
            .values(state="failed", note=f"The worker stopped {_MAX_ATTEMPTS} times while it read the video.")
            .execution_options(synchronize_session=False)
        )
        due = session.execute(
            select(Reading, Video.uri)
            .join(Video, Video.vector_id == Reading.video_vector_id)
            .where(*is_due, readings.IS_NO_COPY)  # a copy takes over what its original says
            .order_by(Reading.attempts, Reading.video_vector_id)
            .limit(_BATCH_ROWS)
            .with_for_update(of=Reading, skip_locked=True)
        )
        for reading, uri in due.all():
            vector_id = reading.video_vector_id
            if reading.attempts and jobs and vector_id not in {video for video, _ in jobs}:
                break
            is_file = reading.source == "file"  # read by another child
            job = jobs.setdefault((vector_id, is_file), ReadingJob(vector_id, uri, {}))
            job.models[reading.source] = reading.model
            reading.lease_owner, reading.fencing_token = owner[:255], token
            reading.lease_expires_at = at + timedelta(seconds=settings().lease_seconds)
            reading.attempts += 1
    return ReadingClaim(owner, token, list(jobs.values())) if jobs else None
