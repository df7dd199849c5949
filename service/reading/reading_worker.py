"""The thread of a CPU worker that reads videos while no video is to be probed.

An hour of video is read for many minutes, so this is no job of the worker's queue, which has one process: the thread
waits for a child process with the lowest priority, and the worker probes meanwhile. No video is begun while others are
to be probed, so that new domains become searchable as fast as without reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from sqlalchemy import or_, select

from cinestrata_schemas.uris import redact_uri
from media import DecoderUnavailable, MediaError
from media.reading import SourceReading, VideoReader, VideoReading, available_sources
from service.catalog.database import now, session_scope
from service.catalog.readings import MODEL_SOURCES, ReadingJob, claim_readings, give_back_readings
from service.catalog.tables import Task
from service.core.errors import CinestrataError, DecoderOutage, TaskInterruption
from service.core.settings import settings
from service.storage.library_files import local_video

_POLL_SECONDS = 5.0
_STOP_SECONDS = 3.0  # that a stop waits for the child to report progress; it ends with its worker

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
            except TaskInterruption:
                continue  # another worker reads the videos, or this one is stopping
            except CinestrataError as error:
                log.warning("reading_postponed", reason=str(error))
            except Exception:
                log.exception("reading_failed")

    def stop(self) -> None:
        """End after the current step of the reading. If that takes long, give the videos back, and do not wait."""
        self._stop_requested.set()
        if self.is_alive():
            self.join(_STOP_SECONDS)
            give_back_readings(self._owner)


def read_queued(owner: str) -> int:
    """Read queued videos until none is left, or others are to be probed; returns the number of videos.

    Raises:
        TaskInterruption: Another worker has claimed the videos, or this one is stopping.
        SourceUnavailable: The reader does not start, or the source of a video is unreachable.
    """
    problems = available_sources(settings().speech_model)
    sources = [source for source in MODEL_SOURCES if problems[source] is None]
    videos = 0
    with VideoReader() as reader:
        while not _probing_is_due() and (claim := claim_readings(owner, sources)) is not None:
            with claim:
                for job in claim.jobs:
                    if _probing_is_due():
                        return videos
                    claim.tick()
                    claim.store(job, _read(reader, job, claim.tick))
                    videos += 1
    return videos


def _read(reader: VideoReader, job: ReadingJob, report_alive: Callable[[], None]) -> VideoReading:
    try:
        with local_video(job.uri) as path:
            return reader.read(
                path,
                list(job.models),
                speech_model=job.models.get("speech") or settings().speech_model,
                name=redact_uri(job.uri),
                progress=report_alive,
            )
    except DecoderUnavailable as error:
        raise DecoderOutage(f"This worker's reader of videos can't be used: {error}.") from error
    except MediaError as error:
        return {source: SourceReading([], note=error.reason, failed=True) for source in job.models}


def _probing_is_due() -> bool:
    """Whether videos of a task are probed, or wait for that; not while their source is unavailable."""
    with session_scope() as session:
        is_postponed = Task.lease_owner.is_(None) & (Task.lease_expires_at > now(session))
        query = select(Task.id).where(Task.state.in_(("queued", "probing")), Task.probed_at.is_(None))
        waits = or_(Task.lease_expires_at.is_(None), ~is_postponed)
        return session.scalar(query.where(waits).limit(1)) is not None
