"""Start, follow and cancel the reading of a domain's videos."""

from __future__ import annotations

from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import ReadingDetails, ReadingProgress, ReadingSpec
from media.reading import available_sources
from service.access.audit_log import record_change
from service.catalog import readings
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain
from service.catalog.tables import Task
from service.core.errors import Conflict
from service.core.settings import settings
from service.tasks.lifecycle.state_machine import lock_task, record
from service.tasks.task_storage import require_domain


def get_reading(task_id: str) -> ReadingDetails:
    """Look up what is read from a domain's videos, and how far that is; raise NotFound or Conflict."""
    with session_scope() as session:
        return _details(session, require_domain(session, task_id, "its videos are read"))


def start_reading(task_id: str, spec: ReadingSpec) -> ReadingDetails:
    """Queue the videos of a domain, or an append's domain, that are not read yet, or are to be read again. Idempotent.

    Raises NotFound, or Conflict if the domain is not learned, or nothing is to be read from its videos or can be.
    """
    with session_scope(write=True) as session:
        domain = lock_task(session, require_domain(session, task_id, "its videos are read").id)
        domain.read = spec.read or domain.read
        sources = readings.readable_sources(domain.read)
        if not sources:
            details = _details(session, domain)
            reasons = "; ".join(details.unavailable.values()) or f"read is {details.read}"
            raise Conflict(f"Nothing can be read from {domain.name!r}: {reasons}.")
        readings.queue_unread(session, in_domain(domain.id), sources, subtitled=spec.subtitled)
        states = ["cancelled", *(["failed"] if spec.retry else [])]
        readings.change_readings(session, domain.id, sources, states, state="pending", attempts=0)
        if spec.speech_model and "speech" in sources:
            again = {"state": "pending", "attempts": 0, "model": spec.speech_model}
            readings.change_readings(session, domain.id, ["speech"], ["pending", "done", "failed"], **again)
        facts = spec.model_dump(exclude_defaults=True)
        record(session, domain.id, "log", {"message": "Its videos are read.", **facts})
        record_change(session, "task.read", domain.id, facts)
        return _details(session, domain)


def cancel_reading(task_id: str) -> ReadingDetails:
    """Take a domain's videos from the queue; what was read stays. Errors as for :func:`get_reading`. Idempotent."""
    with session_scope(write=True) as session:
        domain = lock_task(session, require_domain(session, task_id, "its videos are read").id)
        readings.change_readings(session, domain.id, readings.READ_SOURCES, ["pending"], state="cancelled")
        record(session, domain.id, "log", {"message": "The reading of its videos was cancelled."})
        record_change(session, "task.read.cancel", domain.id, {})
        return _details(session, domain)


def _details(session: Session, domain: Task) -> ReadingDetails:
    progress = readings.read_progress(session, [domain.id]).get(domain.id, ReadingProgress())
    names, problems = readings.names_to_read(domain.read), available_sources(settings().speech_model)
    return ReadingDetails(
        **progress.model_dump(),
        read=domain.read or settings().read,
        unavailable={source: text for source, text in problems.items() if text and source in names},
    )
