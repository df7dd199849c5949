"""Where vectors live: one shard per task, written once, verified, mapped, searched and merged."""

from __future__ import annotations

from index.audit import Audit, audit
from index.backup import generation_files
from index.errors import (
    FingerprintMismatch,
    ManifestError,
    ReleaseCorrupt,
    ShardCorrupt,
    ShardMissing,
    ShardRefused,
    ShardStoreError,
    StoreUnavailable,
)
from index.format import Manifest, ReleaseEntry, ShardEntry, TombstoneEntry
from index.merge import Hit, merge
from index.segment import Hits, Segment
from index.shard import Shard
from index.snapshot import Snapshot
from index.store import ShardStore
from index.threads import one_thread_per_search
from index.vector_store import TaskVectors, VectorStore

__all__ = [
    "Audit",
    "FingerprintMismatch",
    "Hit",
    "Hits",
    "Manifest",
    "ManifestError",
    "ReleaseCorrupt",
    "ReleaseEntry",
    "Segment",
    "Shard",
    "ShardCorrupt",
    "ShardEntry",
    "ShardMissing",
    "ShardRefused",
    "ShardStore",
    "ShardStoreError",
    "Snapshot",
    "StoreUnavailable",
    "TaskVectors",
    "TombstoneEntry",
    "VectorStore",
    "audit",
    "generation_files",
    "merge",
    "one_thread_per_search",
]
