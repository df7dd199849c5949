"""Look-up of tasks by the name or id in a request."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.tables import Task
from service.core.errors import NotFound

__all__ = ["find_task", "require_task"]


def find_task(session: Session, name_or_id: str) -> Task | None:
    """Return the task with an id or a name; None if there is none.

    Ids have priority, because a task may be named like the id of another.
    """
    if "\0" in name_or_id:  # PostgreSQL cannot store it, and refuses to compare with it
        return None
    return (
        session.get(Task, name_or_id)
        or session.scalars(select(Task).where(Task.name == name_or_id)).one_or_none()
    )


def require_task(session: Session, name_or_id: str) -> Task:
    """Return the task with an id or a name.

    Raises:
        NotFound: the task does not exist.
    """
    task = find_task(session, name_or_id)
    if task is None:
        raise NotFound(f"There is no task {name_or_id!r}.")
    return task
