"""How a task changes state: always with its row locked, always with an event."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from service.catalog.database import now
from service.catalog.tables import ACTIVE_STATES, FINAL_STATES, Line, Task
from service.core.errors import LeaseLost, NotFound
from service.tasks.task_events import record

__all__ = ["clear_lease", "first_active_task", "locked", "locked_if", "move", "next_position", "owned"]

_Row = TypeVar("_Row")


def locked(session: Session, task_id: str) -> Task:
    """The task, its row locked until commit.

    Raises:
        NotFound: there is no such task.
    """
    task = session.scalars(_for_update(select(Task).where(Task.id == task_id))).one_or_none()
    if task is None:
        raise NotFound(f"There is no task {task_id!r}.")
    return task


def locked_if(session: Session, task_id: str, still: ColumnElement[bool]) -> Task | None:
    """The task, its row locked until commit, if the condition still holds once the lock is ours."""
    return session.scalars(_for_update(select(Task).where(Task.id == task_id, still))).one_or_none()


def owned(session: Session, task_id: str, token: int) -> Task:
    """The task, its row locked until commit, if the holder of ``token`` still owns it.

    Raises:
        LeaseLost: it does not.
    """
    task = session.scalars(_for_update(select(Task).where(Task.id == task_id))).one_or_none()
    if task is None or task.fencing_token != token or task.state not in ACTIVE_STATES:
        raise LeaseLost(f"Task {task_id} no longer belongs to this worker.")
    return task


def move(
    session: Session, task: Task, state: str, *, error: str | None = None, hint: str | None = None
) -> None:
    """Put a locked task into a state. A final state ends the lease and shuts out whoever held it."""
    at = now(session)
    data: dict[str, Any] = {"state": state, "from": task.state}
    task.state, task.error, task.error_hint = state, error, hint
    if error:
        data |= {"error": error, "hint": hint}
    if state in FINAL_STATES:
        clear_lease(task)
        task.cancel_requested = False
        task.finished_at = at
        task.eta_seconds = None
    record(session, task.id, "state", data, at)


def clear_lease(task: Task) -> None:
    """Nobody owns the task any more; writes of a former owner are refused."""
    task.lease_owner = task.lease_expires_at = None
    task.fencing_token += 1


def first_active_task(session: Session) -> Task | None:
    """The first task that is neither ready, failed nor cancelled: the only one that may be learned."""
    return session.scalars(
        select(Task).where(Task.state.in_(ACTIVE_STATES)).order_by(Task.position).limit(1)
    ).one_or_none()


def next_position(session: Session) -> int:
    """The next place in the line. Holds the line until commit, so that places appear in order."""
    line = session.scalars(_for_update(select(Line).where(Line.id == 1))).one()
    line.last_position += 1
    return line.last_position


def _for_update(query: Select[_Row]) -> Select[_Row]:
    # SQLite leaves FOR UPDATE out; there BEGIN IMMEDIATE has locked the whole file already.
    return query.with_for_update().execution_options(populate_existing=True)
