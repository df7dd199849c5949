"""Lists of shards, in pages by keyset."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select

from cinestrata_schemas.library import ShardPage, ShardSummary
from service.catalog.database import id_chunks, session_scope
from service.catalog.keyset_paging import KeysetOrders, contains_text
from service.catalog.tables import Shard, Task
from service.library.library_status import shard_faults
from service.storage.index_manifest import published_manifest

_ORDERS = KeysetOrders(
    {"created": Shard.created_at, "count": Shard.count, "bytes": Shard.bytes}, unique=Shard.id
)
_NO_LIMIT = 2**31  # rows


def list_shards(
    degraded: Mapping[str, str] | None = None,
    *,
    text: str | None = None,
    sort: str = "created",
    cursor: str | None = None,
    limit: int | None = None,
) -> ShardPage:
    """Return a page of published shards.

    Args:
        degraded: Reasons by task id from the search snapshot of this process. Differences between the manifest and the
            catalog are added.
        text: Only shards of domains whose name or id contains this text, regardless of case.
        sort: ``created``, ``count`` or ``bytes``; with ``-`` in reverse.
        cursor: ``next_cursor`` of the page before.
        limit: Maximum number of shards; None: all.

    Raises:
        InvalidInput: the cursor is not one of this list.
        Unavailable: the catalog is unreachable.
    """
    manifest, errors = published_manifest()
    query = select(Shard)
    if text:
        query = query.where(
            Shard.task_id.in_(select(Task.id).where(contains_text(text, [Task.name, Task.id])))
        )
    with session_scope() as session:
        page = _ORDERS.read_page(session, query, sort=sort, cursor=cursor, limit=limit or _NO_LIMIT)
        names: dict[str, str] = {}
        for chunk in id_chunks([shard.task_id for shard in page.rows]):
            names |= dict(session.execute(select(Task.id, Task.name).where(Task.id.in_(chunk))).all())
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
