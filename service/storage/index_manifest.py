"""The index manifest, the vector store of the settings, and the write lock for changes to both index and catalog."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache

import numpy as np
from sqlalchemy import func, select

from index.arrays import FIRST_MOMENT_ID, Ids
from index.errors import ManifestError, ShardStoreError
from index.files.manifest_format import Manifest
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore
from index.store_options import EXACT_ROWS, AnnPolicy, Device, MilvusAddress
from models.releases.release_files import read_fold_queries
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import Unavailable
from service.core.settings import Settings, settings

MILVUS_TIMEOUT_SECONDS = 10.0
WAIT_SECONDS = 10.0  # short, because a waiting request occupies a thread
_REPORT_SECONDS = 1.0


@contextmanager
def unavailable_if_failing(problem: str) -> Iterator[None]:
    """Raise Unavailable, with the problem and its cause, if a ``with`` block cannot read or write a file."""
    try:
        yield
    except (ShardStoreError, OSError) as error:
        raise Unavailable(f"{problem}: {error}", 30) from error


def stored_ids(task_id: str, ids: Ids) -> Ids:
    """Select the vector IDs that a task's shard stores, deleted ones included; raise Unavailable."""
    if not settings().index_dir.exists():
        return ids[:0]
    with unavailable_if_failing("The index can't be read"):
        return ShardStore(settings().index_dir).stored_ids(task_id, ids)


def searchable_videos() -> Ids:
    """List the videos in all readable shards, without moments and deleted ones, by vector ID; raise Unavailable."""
    store = library_store(settings())
    with unavailable_if_failing("The index can't be read"):
        manifest = store.manifest()
    videos = [np.empty(0, np.int64)]
    for key in manifest.shards:
        # Those of other shards are read from the catalog once they are back.
        with suppress(ShardStoreError, OSError):
            videos.append(store.open(manifest.segments(key), store.tombstones(manifest, key)).ids)
    ids: Ids = np.sort(np.concatenate(videos))
    return ids[: np.searchsorted(ids, FIRST_MOMENT_ID)]


def read_manifest() -> Manifest:
    """Read the manifest, an empty one if there is no index yet; raise Unavailable."""
    if not settings().index_dir.exists():
        return Manifest()
    with unavailable_if_failing("The index can't be read"):
        return ShardStore(settings().index_dir).manifest()


def published_manifest() -> tuple[Manifest, dict[str, str]]:
    """Read the index manifest, and the error if it is unreadable."""
    try:
        return ShardStore(settings().index_dir).manifest(), {}
    except ShardStoreError as error:
        return Manifest(), {"index": str(error)}


def require_manifest(published: Manifest) -> None:
    """Refuse an empty manifest for a library with published tasks; raise ManifestError.

    Otherwise, the next published task would start a new manifest, which lacks the existing shards.
    """
    if published.release is not None:
        return
    with session_scope() as session:
        published_tasks = session.scalar(select(func.count()).where(Task.learned_order.is_not(None)))
    if published_tasks:
        raise ManifestError(
            f"manifest.json is missing, but the catalog has {published_tasks} published tasks; restore "
            "the file from a backup"
        )


@contextmanager
def index_lock(
    report_alive: Callable[[], object] | None = None, *, wait_seconds: float | None = None
) -> Iterator[None]:
    """Hold the index write lock during a ``with`` block; shard store operations in the block use it; raise Unavailable.

    A compaction holds the lock for minutes. A transaction waiting for it would keep its rows locked that long, and on
    SQLite block all catalog writers. So every change to both takes the lock first, then begins its transaction.

    While another writer has the lock, ``report_alive`` is called every second, and may end the wait by an exception.
    Without it, the wait ends after ``wait_seconds``, by default ``WAIT_SECONDS``.
    """
    store = ShardStore(settings().index_dir)
    wait_seconds = WAIT_SECONDS if wait_seconds is None else wait_seconds
    deadline = time.monotonic() + wait_seconds
    with ExitStack() as stack:
        while True:
            try:
                store.root.mkdir(parents=True, exist_ok=True)
                stack.enter_context(store.write_lock(min(_REPORT_SECONDS, wait_seconds)))
                break
            except TimeoutError as error:
                if report_alive is not None:
                    report_alive()
                elif time.monotonic() >= deadline:
                    raise Unavailable(
                        "Another process is changing the index, for example compacting it; try again.", 10
                    ) from error
            except OSError as error:
                raise Unavailable(f"The index can't be written: {error}", 30) from error
        yield


def library_store(configured: Settings, *, device: Device = "cpu") -> ShardStore:
    """Open the library's shard store, which connects to a server only when a row is read; raise DeviceMissing."""
    remote = None
    if configured.milvus.uri:
        token = configured.milvus.token
        remote = _milvus(
            MilvusAddress(
                uri=configured.milvus.uri,
                token=token.get_secret_value() if token else "",
                collection=configured.milvus.collection,
                index=configured.milvus.index,
                timeout=MILVUS_TIMEOUT_SECONDS,
            )
        )
    return ShardStore(
        configured.index_dir,
        policy=AnnPolicy(exact_rows=EXACT_ROWS),
        read_queries=read_fold_queries,
        device=device,
        remote=remote,
        write_remote=configured.vector_store == "milvus",
    )


@lru_cache(maxsize=8)
def _milvus(address: MilvusAddress) -> MilvusVectorStore:
    """Open the connection to an address; one per process."""
    return MilvusVectorStore(address)
