"""Where vectors live: one shard per task, written once, verified, mapped, searched and merged."""

from __future__ import annotations

from index.approximate import EXACT_ROWS, Policy
from index.audit import Audit, audit
from index.backup import generation_files
from index.device import Device
from index.errors import (
    DeviceMissing,
    FingerprintMismatch,
    ManifestError,
    ReleaseCorrupt,
    ShardCorrupt,
    ShardMissing,
    ShardRefused,
    ShardStoreError,
    StoreUnavailable,
)
from index.format import Manifest, ReleaseEntry, ShardEntry, Structure, TombstoneEntry
from index.merge import Hit, merge
from index.moments import FIRST_MOMENT, MOST_MOMENTS, are_moments, moment_ids, videos_of
from index.segment import Hits, Segment
from index.shard import Shard
from index.snapshot import Snapshot
from index.store import ShardStore
from index.threads import in_parallel, one_thread_per_search
from index.vector_store import TaskVectors, VectorStore

__all__ = [
    "EXACT_ROWS",
    "FIRST_MOMENT",
    "MOST_MOMENTS",
    "Audit",
    "Device",
    "DeviceMissing",
    "FingerprintMismatch",
    "Hit",
    "Hits",
    "Manifest",
    "ManifestError",
    "Policy",
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
    "Structure",
    "TaskVectors",
    "TombstoneEntry",
    "VectorStore",
    "are_moments",
    "audit",
    "generation_files",
    "in_parallel",
    "merge",
    "moment_ids",
    "one_thread_per_search",
    "videos_of",
]
