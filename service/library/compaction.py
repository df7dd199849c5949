"""Compaction: measure what deleted videos occupy, and rewrite shards without them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import exists, select, update

from index.errors import ShardStoreError
from index.files.manifest_format import Manifest
from service.access.audit_log import record_change
from service.catalog.database import session_scope
from service.catalog.tables import LEARNING_STATES, Shard, Task, Video
from service.catalog.task_names import find_task
from service.core.errors import NotFound, Unavailable
from service.core.settings import settings
from service.storage import index_manifest, library_files
from service.storage.index_manifest import library_store, unavailable_if_failing
from service.storage.video_files import delete_unneeded_frames

_ABANDONED_SECONDS = 3600
_LOCK_SECONDS = 1.0  # short, because the maintenance thread also reports its worker's health


@dataclass(frozen=True)
class StorageUsage:
    """What a task occupies in the index: vectors including deleted ones, and bytes of segments and tombstones."""

    task_id: str
    name: str
    vectors: int
    deleted: int
    segments: int
    bytes: int

    @property
    def is_compactable(self) -> bool:
        """Whether compaction would change the shard."""
        return self.deleted > 0 or self.segments > 1


def storage_usage(task: str | None = None) -> list[StorageUsage]:
    """Measure the storage of each task, or of one by ID or name (raise NotFound), in learned order."""
    manifest = index_manifest.read_manifest()
    with session_scope() as session:
        if task is None:
            names = dict(session.execute(select(Task.id, Task.name)).all())
        else:
            named = find_task(session, task)
            names = {named.id: named.name} if named else {}
    chosen = [name for name in manifest.shards if task is None or name in names]
    if task is not None and not chosen:
        raise NotFound(f"No task {task!r} has a shard.")
    return [_storage_usage(manifest, task_id, names.get(task_id, task_id)) for task_id in chosen]


def compact(task_id: str) -> StorageUsage:
    """Copy a task's remaining vectors into one new segment, without affecting searches; raise NotFound.

    A task without vectors keeps an empty shard and its position. Processes may still be reading the replaced segments,
    so these stay for an hour, until the next :func:`sweep_index`. An interrupted compaction can be repeated.
    """
    (before,) = storage_usage(task_id)
    with unavailable_if_failing(f"Task {before.name!r} can't be compacted"):
        manifest = library_store(settings()).compact(before.task_id)
    # Also when repeated: the previous process may have died just before this line.
    update_shard_rows(manifest, [before.task_id], "shard.compact")
    return _storage_usage(manifest, before.task_id, before.name)


def sweep_index() -> bool:
    """Delete files that the index has not referred to for an hour.

    Nothing is deleted during training, because its worker reads the snapshot that it started with.

    Returns:
        False if another writer holds the index lock, such as a compaction, which takes minutes: try again later.
    """
    with session_scope() as session:
        if session.scalar(select(exists().where(Task.state.in_(LEARNING_STATES)))):
            return True
    try:
        library_files.recall_cache_path().unlink(missing_ok=True)
        library_store(settings()).collect_garbage(_LOCK_SECONDS)
    except TimeoutError:
        return False
    except (ShardStoreError, OSError) as error:
        raise Unavailable(f"Unused index files can't be deleted: {error}", 30) from error
    return True


def sweep_frame_caches() -> int:
    """Delete frame caches older than an hour that no unfinished task needs, and return how many.

    A worker deletes its task's frame caches when the task is ready. Others are left by failed and cancelled tasks,
    rejected copies and killed workers.
    """
    old = {path.stem for path in settings().cache_dir.glob("*/*.npy") if _is_old(path)}
    with unavailable_if_failing("Unused frame caches can't be deleted"):
        return delete_unneeded_frames(old)


def sweep_orphan_thumbnails() -> None:
    """Delete thumbnails older than an hour that belong to no video.

    Killed processes and concurrent deletions leave such files. This lists all files.
    """
    found = [path for path in settings().thumbnails_dir.glob("*.jpg") if _is_old(path)]
    # Queried after the listing, so that new videos' files are not taken for orphans.
    with session_scope() as session:
        known = set(session.scalars(select(Video.id)))
    for path in found:
        if path.stem not in known:
            path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _ABANDONED_SECONDS
    except FileNotFoundError:  # deleted by another process
        return False


def update_shard_rows(manifest: Manifest, tasks: Iterable[str], action: str) -> None:
    """Update the catalog rows of tasks' rewritten shards, with an audit log entry for each. Idempotent."""
    with session_scope(write=True) as session:
        for task in tasks:
            shard = manifest.shards[task]
            is_previous = (Shard.task_id == task) & (Shard.id != shard.id)
            previous = session.execute(
                select(Shard.id, Shard.count, Shard.bytes).where(is_previous).with_for_update()
            ).one_or_none()
            if previous is None:
                continue
            session.execute(
                update(Shard).where(is_previous).values(id=shard.id, count=shard.count, bytes=shard.bytes)
            )
            facts = {
                "shard": shard.id,
                "before": previous.id,
                "store": shard.place or "folder",
                "vectors": shard.count,
                "bytes": shard.bytes,
                "bytes_before": previous.bytes,
            }
            record_change(session, action, task, facts)


def _storage_usage(manifest: Manifest, task_id: str, name: str) -> StorageUsage:
    segments = manifest.segments(task_id)
    tombstones = manifest.tombstones.get(task_id)
    return StorageUsage(
        task_id=task_id,
        name=name,
        vectors=sum(segment.count for segment in segments),
        deleted=manifest.deleted_count(task_id),
        segments=len(segments),
        bytes=sum(segment.bytes for segment in segments) + (tombstones.bytes if tombstones else 0),
    )
