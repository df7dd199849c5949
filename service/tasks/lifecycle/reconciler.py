"""Reconcile tasks: recover those of dead workers, finish cancellations, resend lost messages.

Every worker reconciles every few seconds; concurrent runs do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from service.catalog.database import now, session_scope
from service.catalog.leases import sweep_leases
from service.catalog.tables import ACTIVE_STATES, Chunk, IdempotencyKey, Task
from service.tasks import broker, idempotency
from service.tasks.lifecycle import state_machine
from service.tasks.lifecycle.chunks import free_chunk
from service.tasks.lifecycle.state_machine import (
    clear_lease,
    first_active_task,
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
    """Reconcile all tasks once.

    Raises:
        Unavailable: The catalog cannot be reached.
    """
    outcomes: dict[str, list[str]] = {"recovered": [], "failed": [], "cancelled": []}
    with session_scope() as session:
        abandoned = session.scalars(
            select(Task.id).where(_abandoned(now(session))).order_by(Task.position)
        ).all()
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
        to_probe = session.scalars(
            select(Task.id)
            .where(
                Task.state.in_(("queued", "probing")),
                Task.probed_at.is_(None),
                # A claimed task can use more workers as long as chunks are free.
                or_(
                    free,
                    Task.lease_owner.is_not(None)
                    & exists().where(Chunk.task_id == Task.id, free_chunk("probing", at)),
                ),
            )
            .order_by(Task.position)
        ).all()
        to_append = session.scalars(
            select(Task.id)
            .where(
                Task.state.in_(ACTIVE_STATES), Task.target_id.is_not(None), Task.probed_at.is_not(None), free
            )
            .order_by(Task.position)
        ).all()
        to_embed = session.scalars(
            select(Task.id)
            .where(
                Task.state == "indexing",
                Task.lease_owner.is_not(None),
                exists().where(Chunk.task_id == Task.id, free_chunk("indexing", at)),
            )
            .order_by(Task.position)
        ).all()
        head = first_active_task(session)
        to_learn = [head.id] if head and head.probed_at and not _has_live_lease(head, at) else []
    sent = [t for t in to_probe if broker.send_probe(t)] if to_probe and _is_empty(broker.CPU_QUEUE) else []
    if (to_learn or to_append or to_embed) and _is_empty(broker.GPU_QUEUE):
        # Appends take seconds, so they come before the next training.
        sent += [t for t in to_append if broker.send_append(t)]
        sent += [t for t in to_learn if broker.send_learn(t)]
        sent += [t for t in to_embed if broker.send_embed(t)]
    return tuple(sent)


def _is_empty(queue: str) -> bool:
    return broker.queue_length(queue) == 0


def _abandoned(at: datetime) -> ColumnElement[bool]:
    """Build the condition for tasks whose worker died, or that have no worker and can get none."""
    stuck = or_(Task.cancel_requested.is_(True), Task.attempts >= state_machine.MAX_ATTEMPTS)
    return and_(
        Task.state.in_(ACTIVE_STATES),
        or_(Task.lease_expires_at < at, and_(Task.lease_expires_at.is_(None), stuck)),
    )


def _has_live_lease(task: Task, at: datetime) -> bool:
    return task.lease_expires_at is not None and task.lease_expires_at >= at


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
    if owner is not None and task.state == "training" and task.attempts >= state_machine.MAX_LOST_TRAININGS:
        peak = task.progress.get("peak_memory")
        reported = f"; it last reported a peak of {peak / 1e9:.1f} GB" if peak else ""
        set_state(
            session,
            task,
            "failed",
            error=f"The worker was killed {task.attempts} times in a row while training this task, most "
            f"likely because the machine or container ran out of memory{reported}.",
            hint="Give the worker more memory, or add the domain again with checkpointing: true, a "
            "smaller batch_size, or method 'analytic'. If something else stopped the worker, retry "
            "the task.",
            remedy=Action(name="retry_task", id=task.id),
        )
        return "failed"
    if task.attempts >= state_machine.MAX_ATTEMPTS:
        stage = task.progress.get("stage") or task.state
        set_state(
            session,
            task,
            "failed",
            error=f"The worker stopped {task.attempts} times in a row while {stage} this task, without a message.",
            hint="It may have run out of memory: give the worker more, or choose a smaller batch or "
            "model in the task's settings. Then retry the task.",
            remedy=Action(name="retry_task", id=task.id),
        )
        return "failed"
    clear_lease(task)
    if owner is not None:  # otherwise only the pause for an unavailable source ended
        record_lost_worker(session, task.id, owner, published=False)
    return "recovered"
