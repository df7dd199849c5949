"""Change task states, always with the row locked and an event; and reconcile tasks, which any worker does at any time.

Reconciling recovers tasks of dead workers, finishes cancellations and sends lost messages again. Every worker does it
every few seconds; concurrent runs do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

import numpy as np
import structlog
from asgi_correlation_id import correlation_id
from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import TaskProgress
from cinestrata_schemas.uris import redact_uri
from index.files.manifest_format import Manifest
from service.catalog.database import now, session_scope
from service.catalog.leases import sweep_leases
from service.catalog.operation_tables import IdempotencyKey
from service.catalog.tables import ACTIVE_STATES, FINAL_STATES, Chunk, Event, PositionCounter, Task, Video
from service.core.errors import LeaseLost, NotFound, SourceUnavailable
from service.core.tracing import use_request_id
from service.storage import index_manifest
from service.storage.video_files import register_rejected_uploads
from service.tasks import broker, idempotency
from service.webhooks.endpoints import emit_task_state

MAX_ATTEMPTS = 3  # consecutive claims of a task or chunk without progress
# The same training takes the same memory, and a killed worker takes others down with it.
MAX_LOST_TRAININGS = 2

MAX_OUTAGES = 12  # consecutive attempts that finished no video
_FIRST_PAUSE = 30.0  # seconds; doubles with each pause
_MAX_PAUSE = 900.0

SAME_CONTENT = "same content as "  # starts the reason for duplicates, which do not count as bad videos

ISOLATED = "isolated"  # ``run`` of a single-video probing chunk, which only the task's owner processes

Stage = Literal["probing", "indexing"]
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
    """Reject a video, and record the event; ``content_hash`` is that of a copy, by which a sync finds the original.

    It is final if its content is the reason, so that a retry would reject the same file again.
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
    """Lock a task's row until commit, if it meets conditions once locked (or is free: ``skip_locked``); else None."""
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
    """Change a locked task's state; a final one ends the lease, and schedules rejected uploads for removal."""
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
    with use_request_id(correlation_id.get() or task.request_id):
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
    """Record that the lease expired of a task, ``published`` in the manifest or not, and that it is due again."""
    continuation = "the task continues from its last checkpoint"
    if published:
        continuation = "the shard is published, and the task will be finished"
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
    """Check whether a task's vectors are in the index; raise Unavailable.

    The manifest is replaced just before the catalog commits. If a worker dies in between, the vectors are published and
    only the catalog rows are missing: the task must then be finished, not failed or cancelled.

    The task may be an append, whose videos belong to the domain once the catalog is complete, or an upgrade, which
    gives the domain another release.
    """
    if task.target_id is None:
        return task.id in index_manifest.read_manifest().shards
    if task.upgrades:
        domain = session.get(Task, task.target_id)
        if domain is None or not lacks_upgrade(domain, index_manifest.read_manifest()):
            return False
        return last_upgrade(session, domain.id) == task.id
    ids = session.scalars(select(Video.vector_id).where(Video.task_id == task.id)).all()
    return bool(len(index_manifest.stored_ids(task.target_id, np.array(ids, np.int64))))


def lacks_upgrade(domain: Task, manifest: Manifest) -> bool:
    """Check whether the index has an upgrade of a domain that the catalog lacks; False for an interrupted undoing."""
    replaced = manifest.replaced.get(domain.id)
    if replaced is None or replaced.segments[0].release != domain.release_id:
        return False
    return manifest.shards[domain.id].release != domain.release_id


def last_upgrade(session: Session, domain_id: str) -> str:
    """Get the ID of the upgrade queued last: no other is queued before one that only the index has is complete."""
    upgrades = select(Task.id).where(Task.target_id == domain_id, Task.upgrades)
    return session.scalar(upgrades.order_by(Task.position.desc()).limit(1)) or ""


def learns(task: type[Task] = Task) -> ColumnElement[bool]:
    """Build the condition for tasks that the learning job processes one by one: domains and upgrades, not appends."""
    return or_(task.target_id.is_(None), task.upgrades)


def postpone(
    session: Session, task: Task, claimed_progress: Mapping[str, Any], error: SourceUnavailable
) -> None:
    """Give a task back until its source may respond again, without counting the attempt; or fail it.

    It fails after ``MAX_OUTAGES`` attempts in a row that finished no video since the progress at their claim.
    """
    finished = session.scalar(select(func.count()).where(Video.task_id == task.id, Video.status != "pending"))
    is_stuck = claimed_progress.get("done") == finished  # no video since the claim
    outages = 1 + (int(claimed_progress.get("outages") or 0) if is_stuck else 0)
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


def free_chunk(stage: Stage, at: datetime) -> ColumnElement[bool]:
    """Build the condition for a stage's chunks that any worker may claim."""
    return and_(
        Chunk.stage == stage,
        Chunk.done_at.is_(None),
        Chunk.attempts < MAX_ATTEMPTS,
        func.coalesce(Chunk.run, "") != ISOLATED,
        is_unleased(at),
    )


def is_unleased(at: datetime) -> ColumnElement[bool]:
    """Build the condition for chunks that no worker is processing."""
    return or_(Chunk.lease_expires_at.is_(None), Chunk.lease_expires_at < at)


@dataclass(frozen=True)
class ReconcileReport:
    """Which tasks one reconciliation changed, by ID."""

    recovered: tuple[str, ...]  # dead workers' tasks, now due again
    failed: tuple[str, ...]  # tasks with no attempts left
    cancelled: tuple[str, ...]  # tasks with a cancellation request but no worker
    sent: tuple[str, ...]  # tasks whose messages were resent


def reconcile() -> ReconcileReport:
    """Reconcile all tasks once; raise Unavailable."""
    outcomes: dict[str, list[str]] = {"recovered": [], "failed": [], "cancelled": []}
    with session_scope() as session:
        abandoned = _ids(session, _abandoned(now(session)))
    for task_id in abandoned:
        with session_scope(write=True) as session:
            # A lost host may hold a row lock for seconds; other tasks must not wait for it.
            task = lock_task_if(session, task_id, _abandoned(now(session)), skip_locked=True)
            if task is not None:
                outcomes[_settle(session, task)].append(task_id)
    with session_scope(write=True) as session:
        limit = now(session) - idempotency.RETENTION
        session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < limit))
        sweep_leases(session)
    sent = send_due()
    return ReconcileReport(**{name: tuple(ids) for name, ids in outcomes.items()}, sent=sent)


def send_due() -> tuple[str, ...]:
    """Send a message for every task that waits for a worker, unless the queue holds some; returns the tasks' IDs.

    A queued message starts a worker anyway; more would only make the queue grow while no worker runs.
    """
    with session_scope() as session:
        at = now(session)
        free = or_(Task.lease_expires_at.is_(None), Task.lease_expires_at < at)
        has_worker = Task.lease_owner.is_not(None)

        def may_share(stage: Stage) -> ColumnElement[bool]:  # a claimed task can use more workers
            return has_worker & exists().where(Chunk.task_id == Task.id, free_chunk(stage, at))

        is_unprobed = Task.state.in_(("queued", "probing")) & Task.probed_at.is_(None)
        is_probed = Task.state.in_(ACTIVE_STATES) & Task.probed_at.is_not(None)
        to_probe = _ids(session, is_unprobed, or_(free, may_share("probing")))
        to_append = _ids(session, is_probed, ~learns(), free)
        to_embed = _ids(session, Task.state == "indexing", may_share("indexing"))
        # The first unfinished domain or upgrade is the only one that may be trained.
        head = _ids(session, Task.state.in_(ACTIVE_STATES), learns())[:1]
        to_learn = _ids(session, Task.id.in_(head), is_probed, free)
    sent = [t for t in to_probe if broker.send_probe(t)] if to_probe and _is_empty(broker.CPU_QUEUE) else []
    if (to_learn or to_append or to_embed) and _is_empty(broker.GPU_QUEUE):
        # Appends take seconds, so they come before the next training.
        sent += [t for t in to_append if broker.send_append(t)]
        sent += [t for t in to_learn if broker.send_learn(t)]
        sent += [t for t in to_embed if broker.send_embed(t)]
    return tuple(sent)


def _ids(session: Session, *conditions: ColumnElement[bool]) -> Sequence[str]:
    return session.scalars(select(Task.id).where(*conditions).order_by(Task.position)).all()


def _is_empty(queue: str) -> bool:
    return broker.queue_length(queue) == 0


def _abandoned(at: datetime) -> ColumnElement[bool]:
    """Build the condition for tasks whose worker died, or that have no worker and can get none."""
    stuck = or_(Task.cancel_requested.is_(True), Task.attempts >= MAX_ATTEMPTS)
    return and_(
        Task.state.in_(ACTIVE_STATES),
        or_(Task.lease_expires_at < at, and_(Task.lease_expires_at.is_(None), stuck)),
    )


def _settle(session: Session, task: Task) -> str:
    owner = task.lease_owner
    if is_published(session, task):
        # Its shard is already searchable, so the task is finished despite failures and cancellation requests. The last
        # attempt skips evaluation, and one attempt is always left for that.
        clear_lease(task)
        task.attempts = min(task.attempts, MAX_ATTEMPTS - 1)
        task.cancel_requested = False
        record_lost_worker(session, task.id, owner, published=True)
        return "recovered"
    if task.cancel_requested:
        set_state(session, task, "cancelled")
        return "cancelled"
    error = None
    if owner is not None and task.state == "training" and task.attempts >= MAX_LOST_TRAININGS:
        peak = task.progress.get("peak_memory")
        reported = f"; it last reported a peak of {peak / 1e9:.1f} GB" if peak else ""
        error = (
            f"The worker was killed {task.attempts} times in a row while training this task, most "
            f"likely because the machine or container ran out of memory{reported}."
        )
        hint = (
            "Give the worker more memory, or add the domain again with checkpointing: true, a smaller batch_size, or "
            "method 'analytic'. If something else stopped the worker, retry the task."
        )
    elif task.attempts >= MAX_ATTEMPTS:
        stage = task.progress.get("stage") or task.state
        error = (
            f"The worker stopped {task.attempts} times in a row while {stage} this task, without a message."
        )
        hint = (
            "It may have run out of memory: give the worker more, or choose a smaller batch or model in the task's "
            "settings. Then retry the task."
        )
    if error is not None:
        set_state(
            session, task, "failed", error=error, hint=hint, remedy=Action(name="retry_task", id=task.id)
        )
        return "failed"
    clear_lease(task)
    if owner is not None:  # otherwise only the pause for an unavailable source ended
        record_lost_worker(session, task.id, owner, published=False)
    return "recovered"
