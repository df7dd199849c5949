"""List tasks in keyset pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import TaskKind
from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import session_scope
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Task
from service.catalog.task_names import require_task
from service.core.domain_names import name_key
from service.library.recall_matrix import last_served_order
from service.storage.index_manifest import published_manifest
from service.tasks.task_details import task_details

_ORDERS = KeysetOrders(
    {
        "position": Task.position,
        "name": Task.name_key,
        "created": Task.created_at,
        "learned": Task.learned_order,
    },
    unique=Task.position,
)
_NO_LIMIT = 2**31  # rows


class TaskPage(NamedTuple):
    """A page of tasks."""

    tasks: list[TaskDetails]
    next_cursor: str | None


def list_tasks(
    *,
    state: Sequence[str] | None = None,
    kind: TaskKind | None = None,
    into: str | None = None,
    method: str | None = None,
    text: str | None = None,
    searched: bool | None = None,
    sort: str = "position",
    cursor: str | None = None,
    limit: int | None = None,
) -> TaskPage:
    """List a page of tasks.

    Args:
        state: Only tasks in one of these states.
        kind: Only domains, or only appends.
        into: Only appends to this domain (name or ID).
        method: Only tasks with this learning method.
        text: Only tasks whose name or ID contains this text, case-insensitive; an append has its domain's name.
        searched: Only domains that the served release searches, or only those that it does not; None: both.
        sort: ``position`` (place in the queue), ``name``, ``created`` or ``learned``; ``-`` in front reverses it.
        cursor: ``next_cursor`` from the previous page.
        limit: Maximum number of tasks; None: all.

    Raises:
        NotFound: The domain does not exist.
        InvalidInput: The cursor is not from this list.
    """
    query = select(Task)
    if state:
        query = query.where(Task.state.in_(state))
    if kind is not None:
        query = query.where(Task.target_id.is_(None) if kind == "domain" else Task.target_id.is_not(None))
    if method is not None:
        query = query.where(Task.method == method)
    if text:
        by_name = Task.name_key.contains(name_key(text), autoescape=True)
        named = select(Task.id).where(or_(by_name, contains_text(text, [Task.id, Task.slug])))
        query = query.where(or_(Task.id.in_(named), Task.target_id.in_(named)))
    with session_scope() as session:
        if searched is not None:
            query = query.where(_is_searched(session) if searched else ~_is_searched(session))
        if into is not None:
            query = query.where(Task.target_id == require_task(session, into).id)
        page = _ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit or _NO_LIMIT)
        return TaskPage(task_details(session, page.rows), page.next_cursor)


def _is_searched(session: Session) -> ColumnElement[bool]:
    """Build the condition for learned domains that the served release searches."""
    manifest, _ = published_manifest()
    last = last_served_order(session, manifest)
    return and_(
        Task.state == "ready",
        Task.learned_order.is_not(None),
        *(() if last is None else (Task.learned_order <= last,)),
    )
