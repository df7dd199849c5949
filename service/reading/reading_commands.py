"""Start, follow and cancel the reading of a domain's videos."""

from __future__ import annotations

from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import ReadingDetails, ReadingProgress, ReadingSpec
from media.reading import available_sources
from service.access.audit_log import record_change
from service.catalog.database import session_scope
from service.catalog.domain_videos import in_domain
from service.catalog.readings import (
    MODEL_SOURCES,
    cancel_readings,
    names_to_read,
    queue_again,
    queue_unread,
    read_progress,
)
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
    """Queue a domain's videos that are not read yet, or are to be read again. Idempotent.

    Args:
        task_id: ID of the domain's task, or of an append to it.

    Raises:
        NotFound: The task does not exist.
        Conflict: The task is not a learned domain, or nothing is to be read from its videos or can be.
    """
    with session_scope(write=True) as session:
        domain = lock_task(session, require_domain(session, task_id, "its videos are read").id)
        names = names_to_read(spec.read or domain.read)
        problems = available_sources(spec.speech_model or settings().speech_model)
        sources = [source for source in MODEL_SOURCES if source in names]
        if not sources:
            raise Conflict(
                f"Neither speech nor text in the picture is read from the videos of {domain.name!r}. "
                "Send read: 'file,speech,screen' to change that."
            )
        sources = [source for source in sources if problems[source] is None]
        if not sources:
            raise Conflict(
                f"The videos can't be read on this server: {next(filter(None, problems.values()))}."
            )
        domain.read = spec.read or domain.read
        queue_unread(session, in_domain(domain.id), sources, with_subtitles=spec.subtitled)
        states = ["cancelled", *(["failed"] if spec.retry else [])]
        queue_again(session, domain.id, sources, states, spec.speech_model)
        if spec.speech_model:
            queue_again(session, domain.id, ["speech"], ["done", "failed"], spec.speech_model)
        facts = spec.model_dump(exclude_defaults=True)
        record(session, domain.id, "log", {"message": "Its videos are read.", **facts})
        record_change(session, "task.read", domain.id, facts)
        return _details(session, domain)


def cancel_reading(task_id: str) -> ReadingDetails:
    """Take a domain's videos from the queue; what was read stays. Errors as for :func:`get_reading`. Idempotent."""
    with session_scope(write=True) as session:
        domain = lock_task(session, require_domain(session, task_id, "its videos are read").id)
        cancel_readings(session, domain.id)
        record(session, domain.id, "log", {"message": "The reading of its videos was cancelled."})
        record_change(session, "task.read.cancel", domain.id, {})
        return _details(session, domain)


def _details(session: Session, domain: Task) -> ReadingDetails:
    progress = read_progress(session, [domain.id]).get(domain.id, ReadingProgress())
    problems = available_sources(settings().speech_model)
    return ReadingDetails(
        **progress.model_dump(),
        read=domain.read or settings().read,
        unavailable={source: problem for source, problem in problems.items() if problem is not None},
    )
