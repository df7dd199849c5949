"""Reconcile tasks: recover those of dead workers, finish cancellations, resend lost messages.

Every worker reconciles every few seconds; concurrent runs do no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from service.catalog.database import now, session_scope
from service.catalog.leases import sweep_leases
from service.catalog.operation_tables import IdempotencyKey
from service.catalog.tables import ACTIVE_STATES, Chunk, Task
from service.tasks import broker, idempotency
from service.tasks.lifecycle import state_machine
from service.tasks.lifecycle.chunks import Stage, free_chunk
from service.tasks.lifecycle.state_machine import (
    clear_lease,
    is_published,
    lock_task_if,
    record_lost_worker,
    set_state,
)


@dataclass(frozen=True)
class ReconcileReport:
    """Which tasks one reconciliation changed, by ID.

    Attributes:
        recovered: Dead workers' tasks, now due again.
        failed: Tasks with no attempts left.
        cancelled: Tasks with a cancellation request but no worker.
        sent: Tasks whose messages were resent.
    """

    recovered: tuple[str, ...]
    failed: tuple[str, ...]
    cancelled: tuple[str, ...]
    sent: tuple[str, ...]


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
    """Send a message for every task that waits for a worker, unless the queue already holds messages.

    A queued message starts a worker anyway; more would only make the queue grow while no worker runs.

    Returns:
        IDs of the tasks for which a message was sent.
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
        to_append = _ids(session, is_probed, Task.target_id.is_not(None), free)
        to_embed = _ids(session, Task.state == "indexing", may_share("indexing"))
        # The first unfinished domain is the only one that may be trained.
        head = _ids(session, Task.state.in_(ACTIVE_STATES), Task.target_id.is_(None))[:1]
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
    stuck = or_(Task.cancel_requested.is_(True), Task.attempts >= state_machine.MAX_ATTEMPTS)
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
        task.attempts = min(task.attempts, state_machine.MAX_ATTEMPTS - 1)
        task.cancel_requested = False
        record_lost_worker(session, task.id, owner, published=True)
        return "recovered"
    if task.cancel_requested:
        set_state(session, task, "cancelled")
        return "cancelled"
    error = None
    if owner is not None and task.state == "training" and task.attempts >= state_machine.MAX_LOST_TRAININGS:
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
    elif task.attempts >= state_machine.MAX_ATTEMPTS:
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
