"""Claim tasks: one conditional UPDATE decides, so lost or duplicate messages do no harm."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import ColumnElement, exists, or_, select, update
from sqlalchemy.orm import Session, aliased

from service.catalog.database import now, session_scope
from service.catalog.tables import ACTIVE_STATES, Task
from service.core.settings import settings
from service.tasks.lifecycle import state_machine
from service.tasks.lifecycle.lease import Claim
from service.tasks.lifecycle.state_machine import is_lost_training, is_published, record_lost_worker
from service.tasks.task_events import record


def claim_training(task_id: str, owner: str) -> Claim | None:
    """Claim a task for training, or for resuming an interrupted training.

    Returns:
        The claim; None if the task is not the first unfinished one, not probed, finished, about to be cancelled, out of
        attempts, or leased by another worker.
    """
    earlier = aliased(Task)
    is_first = ~exists().where(
        earlier.state.in_(ACTIVE_STATES), earlier.target_id.is_(None), earlier.position < Task.position
    ).correlate(Task)
    return _claim(task_id, owner, Task.target_id.is_(None), Task.probed_at.is_not(None), is_first)


def claim_append(task_id: str, owner: str) -> Claim | None:
    """Claim an append for embedding; None if it is not due. Several appends and a training may run at the same time."""
    return _claim(task_id, owner, Task.target_id.is_not(None), Task.probed_at.is_not(None))


def claim_probing(task_id: str, owner: str) -> Claim | None:
    """Claim a task for probing; None if it is not due. Several tasks may be probed at the same time."""
    return _claim(task_id, owner, Task.probed_at.is_(None))


def _claim(task_id: str, owner: str, *due: ColumnElement[bool]) -> Claim | None:
    lease = settings().lease_seconds
    with session_scope(write=True) as session:
        at = now(session)
        # The row stays locked, so this is the owner that the UPDATE replaces.
        previous_owner = session.scalar(select(Task.lease_owner).where(Task.id == task_id).with_for_update())
        token = session.execute(
            update(Task)
            .where(
                Task.id == task_id,
                Task.state.in_(ACTIVE_STATES),
                Task.cancel_requested.is_(False),
                Task.attempts < state_machine.MAX_ATTEMPTS,
                or_(Task.lease_expires_at.is_(None), (Task.lease_expires_at < at) & ~is_lost_training()),
                *due,
            )
            .values(
                lease_owner=owner[:255],
                lease_expires_at=at + timedelta(seconds=lease),
                fencing_token=Task.fencing_token + 1,
                attempts=Task.attempts + 1,
            )
            .returning(Task.fencing_token)
            .execution_options(synchronize_session=False)
        ).scalar_one_or_none()
        if token is None:
            return None
        if previous_owner is not None:
            published = is_published(session, session.get_one(Task, task_id))
            record_lost_worker(session, task_id, previous_owner, published=published)
        task = _begin(session, task_id, owner)
    return Claim(task, owner, token)


def _begin(session: Session, task_id: str, owner: str) -> Task:
    task = session.scalars(select(Task).where(Task.id == task_id)).one()
    task.started_at = task.started_at or now(session)
    if task.state == "queued":
        record(session, task_id, "state", {"state": "probing", "from": "queued"})
        task.state = "probing"
    record(session, task_id, "log", {"message": f"Taken by {owner}.", "attempt": task.attempts})
    return task
