"""Resolve a request against a snapshot: which tasks to search, and in which query mode."""

from __future__ import annotations

from typing import cast

from cinestrata_schemas.choice_types import QueryMode
from service.core.errors import InvalidInput
from service.search.catalog_mirror import CatalogMirror
from service.search.errors import UnknownTask
from service.search.search_request import SearchRequest
from service.search.snapshots.search_snapshot import SearchSnapshot

_MAX_LISTED_TASKS = 20  # in an error


def resolve_tasks(snapshot: SearchSnapshot, request: SearchRequest, mirror: CatalogMirror) -> tuple[str, ...]:
    """Resolve the tasks to search to IDs, in learned order whatever the request's order.

    Tasks whose videos are all deleted are left out if others remain: evidence for them would take routing weight from
    the others, and the results would seem to belong to a known domain.

    Raises:
        UnknownTask: The snapshot does not know a task.
        Unavailable: A task's shard cannot be searched, or only the catalog knows its name and cannot be reached.
    """
    if request.tasks is None:
        return snapshot.nonempty_tasks or tuple(snapshot.shards)
    tasks = {_resolve_task(snapshot, task, f"{request.field_prefix}task", mirror) for task in request.tasks}
    return tuple(task for task in snapshot.nonempty_tasks if task in tasks) or tuple(
        task for task in snapshot.shards if task in tasks
    )


def resolve_mode(snapshot: SearchSnapshot, request: SearchRequest) -> QueryMode:
    """Choose a request's query mode.

    Raises:
        InvalidInput: The release does not offer the requested mode.
    """
    if request.mode is None:
        return snapshot.served_mode
    if request.mode not in snapshot.modes:
        raise InvalidInput.at(
            f"{request.field_prefix}mode",
            f"The release does not offer mode {request.mode[:40]!r}.",
            f"Use {' or '.join(snapshot.modes)}.",
        )
    return cast(QueryMode, request.mode)


def _resolve_task(snapshot: SearchSnapshot, task: str, field: str, mirror: CatalogMirror) -> str:
    # IDs take precedence: a task's name may equal another task's ID.
    names = snapshot.task_names
    task_id = task if task in names else _find_named(snapshot, task, mirror)
    if task_id is None:
        raise UnknownTask(task, field, [names[key] for key in list(snapshot.shards)[:_MAX_LISTED_TASKS]])
    snapshot.require_searchable(task_id)
    return task_id


def _find_named(snapshot: SearchSnapshot, name: str, mirror: CatalogMirror) -> str | None:
    """Find a task by name or slug and return its ID; None if the snapshot has none."""
    named = [task_id for task_id, known in snapshot.task_names.items() if known == name]
    if len(named) == 1:
        return named[0]
    # It may be a slug, differ in case, or be the previous name of a deleted domain.
    found = mirror.find_task(name)
    if found is not None and found in snapshot.task_names:
        return found
    return named[-1] if named else None
