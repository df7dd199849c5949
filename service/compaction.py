"""What deleted videos still take, and getting it back; what the catalog knows of shards that were written anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import or_, select, update

from index import Manifest, ShardRefused, ShardStoreError
from service import storage
from service.catalog.database import session_scope
from service.catalog.models import Shard, Task
from service.errors import Conflict, NotFound, Unavailable
from service.settings import settings
from service.vectors import library_store

__all__ = ["Dead", "compact", "dead", "record_shards"]


@dataclass(frozen=True)
class Dead:
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
    def wasted(self) -> bool:
        """Whether compacting would change anything, and can."""
        return self.deleted < self.vectors and (self.deleted > 0 or self.segments > 1)


def dead(task: str | None = None) -> list[Dead]:
    """What each task has, in the order in which they were laid down.

    Args:
        task: id or name of the only one.

    Raises:
        NotFound: there is no such task, or it is not laid down.
        Unavailable: the index cannot be read.
    """
    manifest = storage.manifest()
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
    return [_dead(manifest, task_id, names.get(task_id, task_id)) for task_id in chosen]


def compact(task_id: str) -> Dead:
    """Copy what is left of a task into one new folder; searches go on meanwhile, and give what they gave.

    The folders that it replaces are kept for an hour, for processes that still read them, and are swept then. Killed at
    any line, it can be repeated.

    Raises:
        NotFound: the task is not laid down.
        Conflict: nothing of it is left.
        Unavailable: a file of it cannot be read or written.
    """
    (before,) = dead(task_id)
    store = library_store(settings())
    try:
        manifest = store.compact(before.task_id)
        store.sweep()
    except ShardRefused as error:
        raise Conflict(f"Task {before.name!r} cannot be compacted: {error}.") from error
    except (ShardStoreError, OSError) as error:
        raise Unavailable(f"Task {before.name!r} cannot be compacted: {error}", 30) from error
    # A repetition comes here as well: whoever compacted it may have died just before this.
    record_shards(manifest, [before.task_id])
    return _dead(manifest, before.task_id, before.name)


def record_shards(manifest: Manifest, tasks: Iterable[str]) -> None:
    """Tell the catalog which shards these tasks have now. Telling it again changes nothing."""
    with session_scope(write=True) as session:
        for task in tasks:
            shard = manifest.shards[task]
            session.execute(
                update(Shard)
                .where(Shard.task_id == task, Shard.id != shard.id)
                .values(id=shard.id, count=shard.count, bytes=shard.bytes)
            )


def _dead(manifest: Manifest, task_id: str, name: str) -> Dead:
    parts = manifest.parts(task_id)
    stones = manifest.tombstones.get(task_id)
    return Dead(
        task_id=task_id,
        name=name,
        vectors=sum(part.count for part in parts),
        deleted=manifest.deleted(task_id),
        segments=len(parts),
        bytes=sum(part.bytes for part in parts) + (stones.bytes if stones else 0),
    )
