"""Order of the queue: waiting tasks are moved, those that are being learned stay first.

Releases build on each other in the order of learning, so only one domain is learned at a time: the first of the queue.
A domain before the one in training would be learned at the same time. So domains exchange their places with waiting
domains, and appends, which run beside them, with appends.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import TaskDetails, TaskMove
from service.audit.audit_log import record_change
from service.catalog.database import now, session_scope
from service.catalog.tables import ACTIVE_STATES, FINAL_STATES, LEARNING_STATES, Task
from service.catalog.task_names import require_task
from service.core.errors import Conflict, InvalidInput
from service.tasks.lifecycle import send_due
from service.tasks.lifecycle.state_machine import lock_positions, lock_task
from service.tasks.task_details import task_details
from service.tasks.task_events import record

__all__ = ["move_task", "waiting_tasks"]


def move_task(task_id: str, move: TaskMove) -> TaskDetails:
    """Move a waiting task in the queue.

    Args:
        task_id: Identifier of the task.
        move: Its new place.

    Raises:
        NotFound: the task, or the other task, does not exist.
        Conflict: the task is being learned or has ended.
        InvalidInput: the other task does not wait, or is the task itself.
    """
    with session_scope(write=True) as session:
        lock_positions(session)
        task = lock_task(session, task_id)
        # Locked: a claim of one of these tasks waits, and then sees the new positions.
        waiting = waiting_tasks(session, lock=True)
        if task not in waiting:
            reason = "has ended" if task.state in FINAL_STATES else "is being learned"
            raise Conflict(f"Task {task_id} {reason}; only a waiting task can be moved.")
        is_append = task.target_id is not None
        others = [
            other for other in waiting if other is not task and (other.target_id is not None) == is_append
        ]
        place = _place(session, move, task, others)
        _assign_positions(session, [*others[:place], task, *others[place:]])
        record(session, task_id, "log", {"message": f"Moved to place {place + 1} of the waiting tasks."})
        record_change(session, "task.move", task_id, {"name": task.name, "place": place + 1})
        view = task_details(session, [task])[0]
    send_due()  # the task may be the first now
    return view


def waiting_tasks(session: Session, *, lock: bool = False) -> list[Task]:
    """Return the tasks that are not learned yet and not being learned, in the order of the queue."""
    query = (
        select(Task)
        .where(Task.state.in_(ACTIVE_STATES), Task.state.not_in(LEARNING_STATES))
        .order_by(Task.position)
    )
    if lock:
        query = query.with_for_update().execution_options(populate_existing=True)
    at = now(session)
    return [
        task
        for task in session.scalars(query)
        # A worker that has claimed a probed task is about to learn it.
        if task.probed_at is None or task.lease_expires_at is None or task.lease_expires_at < at
    ]


def _place(session: Session, move: TaskMove, task: Task, others: Sequence[Task]) -> int:
    if move.to is not None:
        return 0 if move.to == "front" else len(others)
    target = require_task(session, move.before or "")
    if target not in others:
        raise InvalidInput.at(
            "before",
            f"{target.name!r} is no waiting task that {task.name!r} can be moved before.",
            "Name another waiting domain, or another waiting append for an append.",
        )
    return others.index(target)


def _assign_positions(session: Session, tasks: Sequence[Task]) -> None:
    """Give tasks their own positions in another order. The column is unique, so they are set aside first."""
    positions = sorted(task.position for task in tasks)
    changed = [
        (task, position) for task, position in zip(tasks, positions, strict=True) if task.position != position
    ]
    for task, position in changed:
        task.position = -1 - position
    session.flush()
    for task, position in changed:
        task.position = position
    session.flush()
