"""Overview of the library for the dashboard and ``cinestrata doctor``."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, select

from index.errors import ShardStoreError
from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from service.catalog.database import now, session_scope
from service.catalog.tables import ACTIVE_STATES, STATES, Release, Shard, Task, Video
from service.core.schemas import LibraryOverview, ShardSummary, WorkerLease
from service.core.settings import settings
from service.library.release_listing import release_summary
from service.tasks import broker

__all__ = ["overview"]


def overview(degraded: Mapping[str, str] | None = None) -> LibraryOverview:
    """Return counts, sizes, active workers and degraded shards.

    Args:
        degraded: Reasons by task id from the search snapshot of this process. Differences between the manifest and the
            catalog are added.

    Raises:
        Unavailable: the catalog is unreachable.
    """
    manifest, errors = _manifest()
    with session_scope() as session:
        at = now(session)
        names = dict(session.execute(select(Task.id, Task.name)).all())
        by_state = dict(session.execute(select(Task.state, func.count()).group_by(Task.state)).all())
        videos = session.scalar(select(func.count()).select_from(Video)) or 0
        published_tasks = select(Shard.task_id)
        searchable = (
            session.scalar(
                select(func.count()).where(Video.status == "accepted", Video.task_id.in_(published_tasks))
            )
            or 0
        )
        shards = session.scalars(select(Shard).join(Task).order_by(Task.learned_order)).all()
        releases = session.scalars(select(Release).order_by(Release.learned_order)).all()
        leases = session.scalars(
            select(Task)
            .where(Task.state.in_(ACTIVE_STATES), Task.lease_owner.is_not(None), Task.lease_expires_at >= at)
            .order_by(Task.position)
        ).all()
    reasons = dict(errors) | {
        shard.task_id: "The manifest of the index does not name this shard."
        for shard in shards
        if not errors
        and (shard.task_id not in manifest.shards or manifest.shards[shard.task_id].id != shard.id)
    }
    reasons |= degraded or {}
    return LibraryOverview(
        release=manifest.release,
        generation=manifest.generation,
        tasks={state: by_state.get(state, 0) for state in STATES},  # type: ignore[misc]
        videos=videos,
        searchable=searchable,
        vectors=sum(shard.count - manifest.deleted_count(shard.task_id) for shard in shards),
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
                degraded=reasons.get(shard.task_id),
            )
            for shard in shards
        ],
        releases=[
            release_summary(release, task=names[release.task_id], current=manifest.release)
            for release in releases
        ],
        bytes_shards=sum(shard.bytes for shard in shards),
        bytes_releases=sum(release.bytes for release in releases),
        workers=[
            WorkerLease(
                task_id=task.id,
                task=task.name,
                state=task.state,  # type: ignore[arg-type]
                owner=task.lease_owner or "",
                expires_at=task.lease_expires_at or at,
            )
            for task in leases
        ],
        degraded={names.get(task_id, task_id): reason for task_id, reason in reasons.items()},
        database="ok",
        broker="ok" if broker.is_reachable() else "The broker does not answer; tasks wait until it does.",
    )


def _manifest() -> tuple[Manifest, dict[str, str]]:
    if not settings().index_dir.exists():
        return Manifest.empty(), {}
    try:
        return ShardStore(settings().index_dir).manifest(), {}
    except ShardStoreError as error:
        return Manifest.empty(), {"index": str(error)}
