"""Where vectors live: one shard per task, written once, verified, mapped, searched and merged."""

from __future__ import annotations

import faiss

from index.errors import (
    FingerprintMismatch,
    ManifestError,
    ShardCorrupt,
    ShardMissing,
    ShardRefused,
    ShardStoreError,
)
from index.format import Manifest, ReleaseEntry, ShardEntry
from index.merge import Hit, merge
from index.shard import Hits, Shard
from index.snapshot import Snapshot
from index.store import ShardStore

__all__ = [
    "FingerprintMismatch",
    "Hit",
    "Hits",
    "Manifest",
    "ManifestError",
    "ReleaseEntry",
    "Shard",
    "ShardCorrupt",
    "ShardEntry",
    "ShardMissing",
    "ShardRefused",
    "ShardStore",
    "ShardStoreError",
    "Snapshot",
    "merge",
    "one_thread_per_search",
]


def one_thread_per_search() -> None:
    """For a server: let requests run beside each other, instead of each search on all cores."""
    faiss.omp_set_num_threads(1)
