"""List releases and shards in keyset pages."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select

from cinestrata_schemas.library import ShardPage, ShardSummary
from cinestrata_schemas.releases import ReleasePage, ReleaseSummary
from service.catalog.database import session_scope
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Release, Shard, Task
from service.catalog.task_names import read_task_names, require_task
from service.library.library_status import shard_faults
from service.storage import index_manifest
from service.storage.index_manifest import published_manifest

_RELEASE_ORDERS = KeysetOrders(
    {"learned": Release.learned_order, "created": Release.created_at, "bytes": Release.bytes},
    unique=Release.learned_order,
)

_SHARD_ORDERS = KeysetOrders(
    {"created": Shard.created_at, "count": Shard.count, "bytes": Shard.bytes}, unique=Shard.id
)
_NO_LIMIT = 2**31  # rows


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
    """List a page of releases.

    Args:
        task: Only the release learned by this task (name or ID).
        kind: Only releases with this kind of encoder.
        method: Only releases with this learning method.
        current: Only the served release, or only the others.
        sort: ``learned`` (order of learning), ``created`` or ``bytes``; ``-`` in front reverses it.
        cursor: ``next_cursor`` from the previous page.

    Raises:
        NotFound: The task does not exist.
        InvalidInput: The cursor is not from this list.
        Unavailable: The index manifest or the catalog cannot be read.
    """
    served = index_manifest.read_manifest().served
    query = select(Release)
    if kind is not None:
        query = query.where(Release.kind == kind)
    if method is not None:
        query = query.where(Release.method == method)
    if current is not None:
        query = query.where(Release.id == (served or "") if current else Release.id != (served or ""))
    with session_scope() as session:
        if task is not None:
            query = query.where(Release.task_id == require_task(session, task).id)
        page = _RELEASE_ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit)
        names = read_task_names(session, (release.task_id for release in page.rows))
    releases = [
        ReleaseSummary(
            id=release.id,
            task=names[release.task_id],
            task_id=release.task_id,
            learned_order=release.learned_order,
            method=release.method,
            backbone=release.backbone,
            kind=release.kind,
            bytes=release.bytes,
            created_at=release.created_at,
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
    """List a page of published shards.

    Args:
        degraded: Why tasks cannot be searched, by task ID, from this process's search snapshot. Differences between the
            manifest and the catalog are added.
        text: Only shards whose domain name or ID contains this text (case-insensitive).
        sort: ``created``, ``count`` or ``bytes``; ``-`` in front reverses it.
        cursor: ``next_cursor`` from the previous page.
        limit: Maximum number of shards; None: all.

    Raises:
        InvalidInput: The cursor is not from this list.
        Unavailable: The catalog is unreachable.
    """
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
            ShardSummary(
                id=shard.id,
                task=names[shard.task_id],
                task_id=shard.task_id,
                release=shard.release_id,
                count=shard.count,
                dim=shard.dim,
                bytes=shard.bytes,
                created_at=shard.created_at,
                deleted=manifest.deleted_count(shard.task_id),
                degraded=faults.get(shard.task_id),
            )
            for shard in page.rows
        ],
        next_cursor=page.next_cursor,
    )
