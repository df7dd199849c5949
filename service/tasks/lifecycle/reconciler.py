"""The repair round: what died is due again, what was asked for is finished, what was lost is sent again.

Every worker runs it every few seconds; running it twice at once does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, and_, delete, or_, select
from sqlalchemy.orm import Session

from service.catalog.database import now, session_scope
from service.catalog.tables import ACTIVE_STATES, IdempotencyKey, Task
from service.core.settings import settings
from service.storage import index_manifest
from service.tasks import broker, idempotency
from service.tasks.lifecycle.state_machine import clear_lease, first_active_task, locked_if, move
from service.tasks.task_events import record

__all__ = ["ReconcileReport", "reconcile", "send_due"]


@dataclass(frozen=True)
class ReconcileReport:
    """What one round did, as task ids."""

    recovered: tuple[str, ...]  # their worker died; they are due again
    failed: tuple[str, ...]  # out of attempts
    cancelled: tuple[str, ...]  # the user had asked for it, and no worker was left to do it
    sent: tuple[str, ...]  # messages sent again


def reconcile() -> ReconcileReport:
    """One round.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    outcomes: dict[str, list[str]] = {"recovered": [], "failed": [], "cancelled": []}
    with session_scope() as session:
        suspects = session.scalars(
            select(Task.id).where(_abandoned(now(session))).order_by(Task.position)
        ).all()
    for task_id in suspects:
        with session_scope(write=True) as session:
            task = locked_if(session, task_id, _abandoned(now(session)))
            if task is not None:
                outcomes[_settle(session, task)].append(task_id)
    with session_scope(write=True) as session:
        limit = now(session) - idempotency.RETENTION
        session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < limit))
    sent = send_due()
    return ReconcileReport(**{name: tuple(ids) for name, ids in outcomes.items()}, sent=sent)


def send_due() -> tuple[str, ...]:
    """Send a message for every task that waits for a worker, if its queue is empty.

    A queue that still holds messages will wake a worker anyway; sending more would only make it grow for as
    long as no worker is there. Returns the ids that were sent.
    """
    with session_scope() as session:
        at = now(session)
        free = or_(Task.lease_expires_at.is_(None), Task.lease_expires_at < at)
        to_probe = session.scalars(
            select(Task.id)
            .where(Task.state.in_(("queued", "probing")), Task.probed_at.is_(None), free)
            .order_by(Task.position)
        ).all()
        head = first_active_task(session)
        to_learn = [head.id] if head and head.probed_at and not _alive(head, at) else []
    sent = [t for t in to_probe if broker.send_probe(t)] if to_probe and _empty(broker.CPU_QUEUE) else []
    sent += [t for t in to_learn if broker.send_learn(t)] if to_learn and _empty(broker.GPU_QUEUE) else []
    return tuple(sent)


def _empty(queue: str) -> bool:
    return broker.queue_length(queue) == 0


def _abandoned(at: datetime) -> ColumnElement[bool]:
    """Its worker died, or nobody is at it and nobody can take it any more."""
    stuck = or_(Task.cancel_requested.is_(True), Task.attempts >= settings().max_attempts)
    return and_(
        Task.state.in_(ACTIVE_STATES),
        or_(Task.lease_expires_at < at, and_(Task.lease_expires_at.is_(None), stuck)),
    )


def _alive(task: Task, at: datetime) -> bool:
    return task.lease_expires_at is not None and task.lease_expires_at >= at


def _settle(session: Session, task: Task) -> str:
    owner = task.lease_owner
    if index_manifest.is_published(task.id):
        # Its shard can be searched already. It is finished, whatever was asked for or went wrong meanwhile.
        # Who takes it for the last of its attempts leaves the measuring out, and there is always one more of those.
        clear_lease(task)
        task.attempts = min(task.attempts, settings().max_attempts - 1)
        task.cancel_requested = False
        record(session, task.id, "log", {"message": "The shard is laid down; the task will be finished."})
        return "recovered"
    if task.cancel_requested:
        move(session, task, "cancelled")
        return "cancelled"
    if task.attempts >= settings().max_attempts:
        stage = task.progress.get("stage") or task.state
        move(
            session,
            task,
            "failed",
            error=f"The worker stopped {task.attempts} times in a row while {stage} this task, without a message.",
            hint="Often it ran out of memory: give the worker more, or choose a smaller batch or model in the "
            f"task's settings. Then POST /tasks/{task.id}/retry.",
        )
        return "failed"
    clear_lease(task)
    record(session, task.id, "log", {"message": f"Lost its worker ({owner}); it goes on where it stopped."})
    return "recovered"
