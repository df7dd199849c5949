"""What deleted videos still take, and getting it back; what the catalog knows of shards that were written anew."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import exists, or_, select, update

from index.errors import ShardStoreError
from index.files.manifest_format import Manifest
from service.catalog.database import session_scope
from service.catalog.tables import LEARNING_STATES, Shard, Task, Video
from service.core.errors import NotFound, Unavailable
from service.core.settings import settings
from service.storage import index_manifest
from service.storage.vector_store_selection import library_store

__all__ = [
    "StorageUsage",
    "compact",
    "storage_usage",
    "sweep_index",
    "sweep_orphan_images",
    "update_shard_rows",
]

_ABANDONED_SECONDS = 3600


@dataclass(frozen=True)
class StorageUsage:
    """What a task has in the index.

    Attributes:
        vectors: all that are stored, ``deleted`` ones included.
        segments: folders that they lie in.
        bytes: of all its folders.
    """

    task_id: str
    name: str
    vectors: int
    deleted: int
    segments: int
    bytes: int

    @property
    def is_compactable(self) -> bool:
        """Whether compacting would change anything."""
        return self.deleted > 0 or self.segments > 1


def storage_usage(task: str | None = None) -> list[StorageUsage]:
    """What each task has, in the order in which they were laid down.

    Args:
        task: id or name of the only one.

    Raises:
        NotFound: there is no such task, or it is not laid down.
        Unavailable: the index cannot be read.
    """
    manifest = index_manifest.read_manifest()
    with session_scope() as session:
        query = select(Task.id, Task.name)
        names = dict(
            session.execute(
                query if task is None else query.where(or_(Task.id == task, Task.name == task))
            ).all()
        )
    if task in names:  # its id; another task may be called so
        names = {task: names[task]}
    chosen = [name for name in manifest.shards if task is None or name in names]
    if task is not None and not chosen:
        raise NotFound(f"No task {task!r} is laid down.")
    return [_storage_usage(manifest, task_id, names.get(task_id, task_id)) for task_id in chosen]


def compact(task_id: str) -> StorageUsage:
    """Copy what is left of a task into one new folder; searches go on meanwhile, and give what they gave.

    Of a task of which nothing is left, an empty shard stays, which keeps its place. The folders that are replaced are
    kept for an hour, for processes that still read them, and go with the next :func:`sweep_index`. Killed at any line, it can
    be repeated.

    Raises:
        NotFound: the task is not laid down.
        Unavailable: a file of it cannot be read or written.
    """
    (before,) = storage_usage(task_id)
    try:
        manifest = library_store(settings()).compact(before.task_id)
    except (ShardStoreError, OSError) as error:
        raise Unavailable(f"Task {before.name!r} cannot be compacted: {error}", 30) from error
    # A repetition comes here as well: whoever compacted it may have died just before this.
    update_shard_rows(manifest, [before.task_id])
    return _storage_usage(manifest, before.task_id, before.name)


def sweep_index() -> None:
    """Remove what the index has done without for an hour.

    While a task is being learned nothing goes: its worker reads the generation with which it began.

    Raises:
        Unavailable: the catalog or the index cannot be reached.
    """
    if _learning():
        return
    try:
        library_store(settings()).collect_garbage()
    except (ShardStoreError, OSError) as error:
        raise Unavailable(f"What the index does without cannot be removed: {error}", 30) from error


def sweep_orphan_images() -> None:
    """Remove pictures that are older than an hour and of no video of the catalog: whoever was killed while it made
    them, or was overtaken by a deletion, left them behind. Looks at every one that there is.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    found = [*settings().cache_dir.glob("*/*.npy"), *settings().thumbnails_dir.glob("*.jpg")]
    found = [path for path in found if _abandoned(path)]
    with session_scope() as session:  # asked last: what it learns of meanwhile is not taken for abandoned
        known = {*session.scalars(select(Video.content_hash)), *session.scalars(select(Video.id))}
    for path in found:
        if path.stem not in known:
            path.unlink(missing_ok=True)


def _abandoned(path: Path) -> bool:
    try:
        return path.stat().st_mtime < time.time() - _ABANDONED_SECONDS
    except FileNotFoundError:  # somebody deletes meanwhile
        return False


def _learning() -> bool:
    with session_scope() as session:
        return bool(session.scalar(select(exists().where(Task.state.in_(LEARNING_STATES)))))


def update_shard_rows(manifest: Manifest, tasks: Iterable[str]) -> None:
    """Tell the catalog which shards these tasks have now. Telling it again changes nothing."""
    with session_scope(write=True) as session:
        for task in tasks:
            shard = manifest.shards[task]
            session.execute(
                update(Shard)
                .where(Shard.task_id == task, Shard.id != shard.id)
                .values(id=shard.id, count=shard.count, bytes=shard.bytes)
            )


def _storage_usage(manifest: Manifest, task_id: str, name: str) -> StorageUsage:
    parts = manifest.segments(task_id)
    stones = manifest.tombstones.get(task_id)
    return StorageUsage(
        task_id=task_id,
        name=name,
        vectors=sum(part.count for part in parts),
        deleted=manifest.deleted_count(task_id),
        segments=len(parts),
        bytes=sum(part.bytes for part in parts) + (stones.bytes if stones else 0),
    )
