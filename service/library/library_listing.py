"""List tasks, releases and shards in keyset pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import TaskKind
from cinestrata_schemas.library import ReleasePage, ReleaseSummary, ShardPage, ShardSummary
from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import session_scope
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Release, Shard, Task, to_response
from service.catalog.task_names import read_task_names, require_task
from service.core.text_rules import name_key
from service.library.library_status import shard_faults
from service.library.recall_matrix import last_served_order
from service.storage import index_manifest
from service.storage.index_manifest import published_manifest
from service.tasks.task_storage import task_details

_TASK_ORDERS = KeysetOrders(
    {
        "position": Task.position,
        "name": Task.name_key,
        "created": Task.created_at,
        "learned": Task.learned_order,
    },
    unique=Task.position,
)
_RELEASE_ORDERS = KeysetOrders(
    {"learned": Release.learned_order, "created": Release.created_at, "bytes": Release.bytes},
    unique=Release.learned_order,
)

_SHARD_ORDERS = KeysetOrders(
    {"created": Shard.created_at, "count": Shard.count, "bytes": Shard.bytes}, unique=Shard.id
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
    """List a page of tasks, by the parameters of ``GET /tasks``; raise NotFound for an unknown domain."""
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
        page = _TASK_ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit or _NO_LIMIT)
        return TaskPage(task_details(session, page.rows), page.next_cursor)


def _is_searched(session: Session) -> ColumnElement[bool]:
    """Build the condition for learned domains that the served release searches."""
    last = last_served_order(session)
    return and_(
        Task.state == "ready",
        Task.learned_order.is_not(None),
        *(() if last is None else (Task.learned_order <= last,)),
    )


def list_releases(
    *,
    task: str | None = None,
    kind: str | None = None,
    method: str | None = None,
    current: bool | None = None,
    sort: str = "learned",
    cursor: str | None = None,
    limit: int = 100,
) -> ReleasePage:
    """List a page of releases, by the parameters of ``GET /releases``; raise NotFound for an unknown task."""
    served = index_manifest.read_manifest().served
    given = {"kind": kind, "method": method}
    query = select(Release).filter_by(**{name: value for name, value in given.items() if value is not None})
    if current is not None:
        query = query.where(Release.id == (served or "") if current else Release.id != (served or ""))
    with session_scope() as session:
        if task is not None:
            query = query.where(Release.task_id == require_task(session, task).id)
        page = _RELEASE_ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit)
        names = read_task_names(session, (release.task_id for release in page.rows))
    releases = [
        to_response(
            ReleaseSummary,
            release,
            task=names[release.task_id],
            current=release.id == served,
            calibration_error=(release.metrics or {}).get("calibration_error"),
        )
        for release in page.rows
    ]
    return ReleasePage(releases=releases, next_cursor=page.next_cursor)


def list_shards(
    degraded: Mapping[str, str] | None = None,
    *,
    text: str | None = None,
    sort: str = "created",
    cursor: str | None = None,
    limit: int | None = None,
) -> ShardPage:
    """List a page of published shards, by the parameters of ``GET /shards``; ``degraded`` as for the status."""
    manifest, errors = published_manifest()
    query = select(Shard)
    if text:
        query = query.where(
            Shard.task_id.in_(select(Task.id).where(contains_text(text, [Task.name, Task.id])))
        )
    with session_scope() as session:
        page = _SHARD_ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit or _NO_LIMIT)
        names = read_task_names(session, (shard.task_id for shard in page.rows))
    faults = shard_faults(page.rows, manifest, errors) | dict(degraded or {})
    return ShardPage(
        shards=[
            to_response(
                ShardSummary,
                shard,
                task=names[shard.task_id],
                release=shard.release_id,
                deleted=manifest.deleted_count(shard.task_id),
                degraded=faults.get(shard.task_id),
            )
            for shard in page.rows
        ],
        next_cursor=page.next_cursor,
    )
