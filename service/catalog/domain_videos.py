"""Videos of a domain: those of its task and those of its appends."""

from __future__ import annotations

from sqlalchemy import ColumnElement, or_, select

from service.catalog.tables import Task, Video

__all__ = ["in_domain"]


def in_domain(task_id: str) -> ColumnElement[bool]:
    """Condition of the videos of a task and of the appends to its domain.

    One statement with this condition sees an append either before or after its publication. Of two statements,
    PostgreSQL shows a publication between them to the second only.
    """
    return Video.task_id.in_(select(Task.id).where(or_(Task.id == task_id, Task.target_id == task_id)))
