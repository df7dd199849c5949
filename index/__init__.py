"""Where vectors live: one shard per task, written once, verified, mapped, searched and merged."""

from __future__ import annotations

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
from index.files.manifest_format import Manifest, ReleaseEntry, ShardEntry, Structure, TombstoneEntry
from index.generation_files import generation_files
from index.integrity_audit import Audit, audit
from index.moment_ids import FIRST_MOMENT, MOST_MOMENTS, are_moments, moment_ids, videos_of
from index.result_merging import Hit, merge
from index.scanning.ann import EXACT_ROWS, Policy
from index.scanning.gpu_scan import Device
from index.scanning.search_threads import in_parallel, one_thread_per_search
from index.scanning.segment import Hits, Segment
from index.shards.shard import Shard
from index.store_snapshot import Snapshot
from index.vector_store import TaskVectors, VectorStore
from index.writer import ShardStore

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
