"""Change task states: always with the row locked, and always with an event for the dashboard and the API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

import numpy as np
import structlog
from sqlalchemy import ColumnElement, Select, delete, func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import TaskProgress
from cinestrata_schemas.uri_redaction import redact_uri
from service.catalog.database import now
from service.catalog.tables import ACTIVE_STATES, FINAL_STATES, Chunk, Event, PositionCounter, Task, Video
from service.core.errors import LeaseLost, NotFound, SourceUnavailable
from service.core.tracing import current_request_id, use_request_id
from service.storage import index_manifest
from service.storage.video_files import register_rejected_uploads
from service.webhooks.endpoints import emit_task_state

MAX_ATTEMPTS = 3  # consecutive claims of a task or chunk without progress
# The same training takes the same memory, and a killed worker takes others down with it.
MAX_LOST_TRAININGS = 2

MAX_OUTAGES = 12  # consecutive attempts that finished no video
_FIRST_PAUSE = 30.0  # seconds; doubles with each pause
_MAX_PAUSE = 900.0

SAME_CONTENT = "same content as "  # starts the reason for duplicates, which do not count as bad videos

_Row = TypeVar("_Row")

log = structlog.get_logger(__name__)


def record(
    session: Session,
    task_id: str,
    kind: Literal["state", "progress", "rejected", "log"],
    data: dict[str, Any],
    at: datetime | None = None,
) -> None:
    """Append an event.

    The caller must hold the lock on the task's row. IDs are assigned at once but visible at commit, so a reader who
    asks for "all events after ID n" would miss an event that commits after a later one.
    """
    session.add(Event(task_id=task_id, at=at or now(session), kind=kind, data=data))


def reject(
    session: Session, video: Video, reason: str, *, is_final: bool, content_hash: str | None = None
) -> None:
    """Reject a video, and record the event.

    Args:
        is_final: Whether the content is the reason, so that a retry would reject the same file again.
        content_hash: Digest of a copy's content, by which a sync finds the original.
    """
    video.status, video.reason, video.content_hash = "rejected", reason, content_hash
    video.is_rejection_final = is_final
    facts = {"uri": redact_uri(video.uri), "video_id": video.id, "reason": reason}
    record(session, video.task_id, "rejected", facts)


def lock_task(session: Session, task_id: str) -> Task:
    """Lock a task's row until commit; raise NotFound."""
    task = lock_task_if(session, task_id)
    if task is None:
        raise NotFound(f"There is no task {task_id!r}.")
    return task


def lock_task_if(
    session: Session, task_id: str, *still: ColumnElement[bool], skip_locked: bool = False
) -> Task | None:
    """Lock a task's row until commit, if the task exists and meets conditions once locked; None otherwise.

    Args:
        skip_locked: Whether to return None if another transaction has locked the row.
    """
    query = select(Task).where(Task.id == task_id, *still)
    return session.scalars(_for_update(query, skip_locked=skip_locked)).one_or_none()


def lock_owned_task(session: Session, task_id: str, token: int) -> Task:
    """Lock a task's row until commit, if the worker's fencing token is still valid; raise LeaseLost."""
    task = lock_task_if(session, task_id, Task.fencing_token == token, Task.state.in_(ACTIVE_STATES))
    if task is None:
        raise LeaseLost(f"Task {task_id} no longer belongs to this worker.")
    return task


def set_state(
    session: Session,
    task: Task,
    state: str,
    *,
    error: str | None = None,
    hint: str | None = None,
    remedy: Action | None = None,
) -> None:
    """Change a locked task's state.

    A final state ends the lease, invalidates its token, and schedules rejected uploads for removal.
    """
    at = now(session)
    data: dict[str, Any] = {"state": state, "from": task.state}
    task.state, task.error, task.error_hint = state, error, hint
    task.remedy = remedy.model_dump(exclude={"request"}) if remedy else None
    if error:
        data |= {"error": error, "hint": hint}
    if state in FINAL_STATES:
        clear_lease(task)
        session.execute(delete(Chunk).where(Chunk.task_id == task.id))
        register_rejected_uploads(session, task.id)
        task.cancel_requested = False
        task.finished_at = at
    record(session, task.id, "state", data, at)
    emit_task_state(session, task)
    with use_request_id(current_request_id() or task.request_id):
        if state == "failed":
            log.error("task_failed", task=task.id, reason=error, hint=hint)
        else:
            log.info("task_state", task=task.id, state=state)


def set_progress(session: Session, task: Task, progress: TaskProgress, *, is_event: bool = True) -> None:
    """Store a locked task's progress, and record it as an event."""
    view = progress.model_dump(exclude_none=True)
    shared = {key: task.progress[key] for key in ("peak_memory",) if key in task.progress}
    task.progress = shared | view
    if is_event:
        record(session, task.id, "progress", view)


def clear_lease(task: Task) -> None:
    """End a task's lease, so that the previous owner's writes are refused."""
    task.lease_owner = task.lease_expires_at = None
    task.fencing_token += 1


def record_lost_worker(session: Session, task_id: str, owner: str | None, *, published: bool) -> None:
    """Record that a task's lease expired and the task is due again.

    Args:
        published: Whether the manifest lists a shard of the task.
    """
    continuation = (
        "the shard is published, and the task will be finished"
        if published
        else "the task continues from its last checkpoint"
    )
    record(session, task_id, "log", {"message": f"Lost its worker ({owner}); {continuation}."})


def next_position(session: Session) -> int:
    """Take the next queue position, locked until commit so that positions become visible in order."""
    line = lock_positions(session)
    line.last_position += 1
    return line.last_position


def lock_positions(session: Session) -> PositionCounter:
    """Lock all queue positions until commit, and get the row with the last assigned one."""
    return session.scalars(_for_update(select(PositionCounter).where(PositionCounter.id == 1))).one()


def _for_update(query: Select[_Row], *, skip_locked: bool = False) -> Select[_Row]:
    # SQLite ignores FOR UPDATE; there, BEGIN IMMEDIATE has locked the whole file.
    return query.with_for_update(skip_locked=skip_locked).execution_options(populate_existing=True)


def is_published(session: Session, task: Task) -> bool:
    """Check whether a task's vectors are in the index.

    The manifest is replaced just before the catalog commits. If a worker dies in between, the vectors are published and
    only the catalog rows are missing: the task must then be finished, not failed or cancelled.

    Args:
        task: A domain, or an append, whose videos belong to the domain once the catalog is complete.

    Raises:
        Unavailable: The manifest or the shard's IDs cannot be read.
    """
    if task.target_id is None:
        return index_manifest.is_published(task.id)
    ids = session.scalars(select(Video.vector_id).where(Video.task_id == task.id)).all()
    return bool(len(index_manifest.stored_ids(task.target_id, np.array(ids, np.int64))))


def postpone(
    session: Session, task: Task, claimed_progress: Mapping[str, Any], error: SourceUnavailable
) -> None:
    """Give a task back until its source may respond again, without counting the attempt; or fail it.

    Args:
        claimed_progress: The task's progress when it was claimed.
    """
    finished = session.scalar(select(func.count()).where(Video.task_id == task.id, Video.status != "pending"))
    outages = 1 + (
        int(claimed_progress.get("outages") or 0) if claimed_progress.get("done") == finished else 0
    )
    if outages > MAX_OUTAGES:
        set_state(
            session,
            task,
            "failed",
            error=error.detail,
            hint=f"No video was rejected because of this. Make {error.awaited} available, then retry the task.",
            remedy=Action(name="retry_task", id=task.id),
        )
        return
    pause = min(_FIRST_PAUSE * 2 ** (outages - 1), _MAX_PAUSE)
    clear_lease(task)
    # A lease without an owner: nobody may claim the task before it expires.
    task.lease_expires_at = now(session) + timedelta(seconds=pause)
    task.attempts = max(task.attempts - 1, 0)
    progress = TaskProgress(stage=f"waiting for {error.awaited}", done=finished, outages=outages)
    set_progress(session, task, progress, is_event=False)
    record(session, task.id, "log", {"message": f"{error.detail} The task will be retried in {pause:.0f} s."})
