"""Look up tasks by ID, name or slug, and check new domains' names."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from service.catalog.database import id_chunks
from service.catalog.tables import PositionCounter, Task
from service.core.errors import Conflict, NotFound
from service.core.text_rules import name_key, unused_slug


def lock_names(session: Session) -> None:
    """Make other transactions that store domain names, or create tasks, wait until this one ends."""
    session.execute(select(PositionCounter.id).where(PositionCounter.id == 1).with_for_update())


def find_task(session: Session, name_or_id: str) -> Task | None:
    """Find a task by ID, name (case-insensitive) or slug, in this order; None if there is none."""
    if "\0" in name_or_id:  # PostgreSQL refuses to compare with it
        return None
    text = name_or_id.encode("utf-8", "replace").decode()
    key = name_key(text)
    tasks = session.scalars(
        select(Task).where(or_(Task.id == text, Task.name_key == key, Task.slug == text))
    ).all()
    return min(tasks, key=lambda task: (task.id != text, task.name_key != key), default=None)


def read_task_names(session: Session, task_ids: Iterable[str]) -> dict[str, str]:
    """Read the names of tasks by ID. Unknown IDs are left out."""
    names: dict[str, str] = {}
    for chunk in id_chunks(sorted(set(task_ids))):
        names |= dict(session.execute(select(Task.id, Task.name).where(Task.id.in_(chunk))).all())
    return names


def require_task(session: Session, name_or_id: str) -> Task:
    """Find a task by ID, name or slug; raise NotFound."""
    task = find_task(session, name_or_id)
    if task is None:
        raise NotFound(f"There is no task {name_or_id!r}.")
    return task


def require_unused_name(session: Session, name: str, *, may_append: bool = True) -> None:
    """Check that no domain has this name or slug (case-insensitive); raise Conflict.

    Call :func:`lock_names` before, if the name is stored. ``may_append``: whether the error suggests appending.
    """
    key = name_key(name)
    taken = session.scalars(
        select(Task).where(or_(Task.name_key == key, Task.slug == key)).order_by(Task.position).limit(1)
    ).first()
    if taken is None:
        return
    if taken.name_key == key:
        detail = f"name: A domain {taken.name!r} already exists. Choose another name"
        if may_append and taken.state == "ready" and taken.target_id is None:
            remedy = Action(name="append_videos", id=taken.id)
            raise Conflict(f"{detail}, or append the videos to it.", remedy=remedy)
        raise Conflict(f"{detail}.")
    raise Conflict(f"name: {name!r} is the slug of the domain {taken.name!r}. Choose another name.")


def assign_slug(session: Session, task: Task) -> None:
    """Give a new domain a slug that differs from all slugs and names. Call :func:`lock_names` before."""

    def is_used(slug: str) -> bool:
        other = select(Task.id).where(
            or_(Task.slug == slug, Task.name_key == slug, Task.id == slug), Task.id != task.id
        )
        return session.scalars(other.limit(1)).first() is not None

    with session.no_autoflush:
        task.slug = unused_slug(task.name, is_used)
