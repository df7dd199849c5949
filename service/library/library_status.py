"""The library's state for pages to poll: bounded in size, with a version for each part.

A version changes with its part, so that a page reads tasks, measures and shards again only after a change.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cachetools import LRUCache, cached
from sqlalchemy import Text, case, cast, func, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.library import (
    DomainVectors,
    LibraryStatus,
    LibraryVersions,
    UncaptionedDomain,
    WorkerLease,
)
from cinestrata_schemas.tasks import TaskDetails
from index.files.manifest_format import Manifest
from service.catalog.database import now, session_scope
from service.catalog.leases import ALIVE, count_workers
from service.catalog.operation_tables import Sync
from service.catalog.readings import IS_PENDING, read_unfinished
from service.catalog.tables import ACTIVE_STATES, FINAL_STATES, STATES, Reading, Release, Shard, Task, Video
from service.catalog.task_names import read_task_names
from service.core.settings import settings
from service.library.alerts import count_open_alerts, open_alerts
from service.library.recall_cells import read_learned_tasks
from service.library.release_serving import pinned_release
from service.storage.index_manifest import published_manifest
from service.tasks import broker
from service.tasks.task_storage import task_details

MAX_ACTIVE = 10
MAX_REJECTED = 1  # rejected videos listed for the failed task
MAX_ALERTS = 10
MAX_FIRST_DOMAINS = 8  # as many as the pages have colors

_loaded_at = time.monotonic()


def library_status(
    degraded: Mapping[str, str] | None = None, uncaptioned: UncaptionedDomain | None = None
) -> LibraryStatus:
    """Collect counts, sizes, unfinished tasks, active workers and faults.

    ``degraded`` says by task ID what this process's search snapshot cannot search. Differences between the manifest and
    the catalog are added. ``uncaptioned`` is a domain of this snapshot.
    """
    manifest, errors = published_manifest()
    with session_scope() as session:
        at = now(session)
        by_state = dict(session.execute(select(Task.state, func.count()).group_by(Task.state)).all())
        learned, measures = read_learned_tasks(session)
        tasks = _tasks_version(session)
        videos, searchable = _count_videos(session, tasks)
        unread = sum(domain.remaining for domain in read_unfinished(session).values())
        pending = session.scalar(select(func.count()).select_from(Reading).where(IS_PENDING))
        # Labeled: a row already has a method `count`.
        shards = session.execute(
            select(Shard.id, Shard.task_id, Shard.count.label("stored"), Shard.bytes)
        ).all()
        releases, release_bytes = session.execute(select(func.count(), func.sum(Release.bytes))).one()
        leases = session.scalars(
            select(Task)
            .where(Task.state.in_(ACTIVE_STATES), Task.lease_owner.is_not(None), Task.lease_expires_at >= at)
            .order_by(Task.position)
        ).all()
        active, failed = _unfinished(session)
        syncs = _digest(map(tuple, session.execute(select(*Sync.__table__.columns).order_by(Sync.id))))
        reasons = shard_faults(shards, manifest, errors) | dict(degraded or {})
        names = read_task_names(session, reasons)
        pinned = pinned_release(session, manifest)
        alerts, alert_count = open_alerts(session, MAX_ALERTS), sum(count_open_alerts(session).values())
        live_workers, reports = count_workers(session)
    # A worker that was started together with this process may still be loading.
    are_workers_due = time.monotonic() - _loaded_at > ALIVE.total_seconds()
    with_videos = [task for task in learned if task.has_videos]
    searched = [task for task in with_videos if pinned is None or task.order <= pinned.learned_order]
    is_unsearched = {task.id for task in with_videos} - {task.id for task in searched}
    vectors = {
        shard.task_id: shard.stored - manifest.deleted_count(shard.task_id)
        for shard in shards
        if shard.task_id not in is_unsearched
    }
    return LibraryStatus(
        release=manifest.served,
        pinned=pinned,
        generation=manifest.generation,
        tasks={state: by_state.get(state, 0) for state in STATES},  # type: ignore[misc]
        domains=len(with_videos),
        searchable_domains=len(searched),
        trained_domains=sum(task.trained for task in with_videos),
        first_domains=[
            DomainVectors(task_id=task.id, task=task.name, vectors=vectors[task.id])
            for task in searched
            if vectors.get(task.id)
        ][:MAX_FIRST_DOMAINS],
        active=active,
        failed=failed,
        videos=videos,
        searchable=searchable - (pinned.unsearchable.videos if pinned else 0),
        unread=unread,
        uncaptioned=uncaptioned,
        vectors=sum(vectors.values()),
        shard_count=len(shards),
        release_count=releases,
        bytes_shards=sum(shard.bytes for shard in shards),
        bytes_releases=release_bytes or 0,
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
        alerts=alerts,
        open_alerts=alert_count,
        open_failures=by_state.get("failed", 0),
        live_workers=live_workers,
        missing_workers=not live_workers and are_workers_due and (reports > 0 or bool(active)),
        max_upload_bytes=settings().max_upload_bytes,
        database="ok",
        broker="ok" if broker.is_reachable() else "The broker doesn't respond; tasks wait until it does.",
        versions=LibraryVersions(
            tasks=f"{tasks}-{pending}",
            measures=f"{measures}-{manifest.pinned or ''}",
            storage=_digest([*map(tuple, shards), manifest.generation, *sorted(reasons.items())]),
            syncs=syncs,
        ),
    )


def shard_faults(shards: Sequence[Any], manifest: Manifest, errors: Mapping[str, str]) -> dict[str, str]:
    """Find manifest errors, and shard rows that a readable manifest does not list, by task ID."""
    missing = {
        shard.task_id: "The index manifest does not list this shard."
        for shard in shards
        if not errors
        and (shard.task_id not in manifest.shards or manifest.shards[shard.task_id].id != shard.id)
    }
    return dict(errors) | missing


def _tasks_version(session: Session) -> str:
    """Digest the task list: all columns shown, except the progress of unfinished tasks."""
    outcome = case((Task.state.in_(FINAL_STATES), cast(Task.progress, Text)), else_="")
    rows = session.execute(
        select(
            Task.id,
            Task.name,
            Task.state,
            Task.position,
            Task.learned_order,
            Task.release_id,
            Task.cancel_requested,
            Task.error,
            Task.error_hint,
            Task.held_out,
            Task.finished_at,
            cast(Task.counts, Text),
            outcome,
        )
        # A finished append has changed its domain's counts.
        .where(or_(Task.target_id.is_(None), Task.state != "ready"))
        .order_by(Task.position)
    )
    return _digest(map(tuple, rows))


def _digest(rows: Iterable[object]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for row in rows:
        digest.update(repr(row).encode())
    return digest.hexdigest()


@cached(
    LRUCache(4),
    key=lambda session, tasks_version: (settings().database_url, tasks_version),
    lock=threading.Lock(),
)
def _count_videos(session: Session, tasks_version: str) -> tuple[int, int]:
    """Count all videos and the searchable ones. Large libraries are counted only after a change."""
    is_searchable = (Video.status == "accepted") & Video.task_id.in_(select(Shard.task_id))
    counts = [select(func.count()).select_from(Video), select(func.count()).where(is_searchable)]
    videos, searchable = (session.scalars(count).one() for count in counts)
    return videos, searchable


def _unfinished(session: Session) -> tuple[list[TaskDetails], TaskDetails | None]:
    """Read the next unfinished tasks in queue order, and the first failed task with its first rejected video."""
    active = session.scalars(
        select(Task).where(Task.state.in_(ACTIVE_STATES)).order_by(Task.position).limit(MAX_ACTIVE)
    ).all()
    failed = session.scalars(
        select(Task).where(Task.state == "failed").order_by(Task.position).limit(1)
    ).all()
    details = [
        task.model_copy(update={"rejected": task.rejected[:MAX_REJECTED] if task.state == "failed" else []})
        for task in task_details(session, [*active, *failed])
    ]
    return details[: len(active)], details[-1] if failed else None
