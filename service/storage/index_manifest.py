"""The manifest of the index: which release and shards are published."""

from __future__ import annotations

from sqlalchemy import func, select

from index.errors import ManifestError, ShardStoreError
from index.files.manifest_format import Manifest
from index.shard_store import ShardStore
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import Unavailable
from service.core.settings import settings

__all__ = ["is_published", "read_manifest", "require_manifest"]


def is_published(task_id: str) -> bool:
    """Whether the index already shows the task's shard.

    The manifest is replaced just before the catalog commits. When a worker dies in between, the shard is
    out and only the catalog's rows are missing: such a task must be finished, not failed or cancelled.

    Raises:
        Unavailable: the manifest cannot be read.
    """
    return task_id in read_manifest().shards


def read_manifest() -> Manifest:
    """What is published; nothing, where there is no index yet.

    Raises:
        Unavailable: it cannot be read.
    """
    if not settings().index_dir.exists():
        return Manifest.empty()
    try:
        return ShardStore(settings().index_dir).manifest()
    except ShardStoreError as error:
        raise Unavailable(f"The index cannot be read: {error}", 30) from error


def require_manifest(published: Manifest) -> None:
    """A lost manifest must not be taken for an empty library: nobody would be told, and the next task that is laid down
    would begin a new one, which does not name what is there.

    Raises:
        ManifestError: nothing is published, and the catalog knows of tasks that were.
        Unavailable: the catalog cannot be reached.
    """
    if published.release is not None:
        return
    with session_scope() as session:
        laid_down = session.scalar(select(func.count()).where(Task.learned_order.is_not(None)))
    if laid_down:
        raise ManifestError(
            f"manifest.json is gone, and the catalog says that domains were laid down ({laid_down}); restore it from a "
            "backup"
        )
