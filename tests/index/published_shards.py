"""Open, extend and age published shards."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.shards.vector_store import SearchableShard


def open_shard_of(store: ShardStore, task: str = "a") -> SearchableShard:
    """Open a task's shard in a store without degraded shards."""
    snapshot = IndexSnapshot.open(store)
    assert snapshot.degraded == {}
    return snapshot.shard(task, fingerprint=f"encoder of {task}")


def append(store: ShardStore, ids: Sequence[int] | np.ndarray, vectors: np.ndarray) -> Manifest:
    """Append a segment to task ``a``."""
    first = store.manifest().shards["a"]
    made = {"task": "a", "release": first.release, "fingerprint": first.fingerprint}
    return store.append(store.write_shard(**made, ids=np.array(ids), vectors=vectors))


def age(*folders: Path) -> None:
    """Make folders old enough for garbage collection."""
    for folder in folders:
        os.utime(folder, (time.time() - 3 * 3600,) * 2)
