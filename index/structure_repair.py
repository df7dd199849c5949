"""Repair of a segment whose ANN structure is lost: a copy of the segment with a structure made from its vectors."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from index.arrays import Vectors
from index.errors import ShardInvalid
from index.files.durable_files import find_damage, hash_files
from index.files.manifest_format import Manifest, SegmentEntry
from index.files.segment_files import DESCRIPTION, FRAMES, IDS, QUERIES, VECTORS, describe, require_intact
from index.publish_validation import PublishValidator
from index.shard_store import ShardStore
from index.shard_writer import ShardWriter
from index.shards.faiss_vector_store import FaissVectorStore

__all__ = ["rebuild_structure"]

_NO_IDS = np.empty(0, np.int64)


def rebuild_structure(store: ShardStore, segment: SegmentEntry) -> Manifest:
    """Publish a copy of a segment whose ANN structure is made again; its vectors are copied bit by bit.

    The queries that measured the structure are needed for a new one. Without them, the copy is always scanned exactly.

    Raises:
        ShardInvalid: The segment is not published, or its rows are in a remote store.
        ManifestError, ShardCorrupt: The manifest, or the vectors or ids of the segment, cannot be trusted.
    """
    with store.write_lock():
        current = store.manifest()
        if (
            segment.task not in current.shards
            or segment not in current.segments(segment.task)
            or segment.place
        ):
            raise ShardInvalid(f"shard {segment.id[:12]} is not published with rows in files")
        local = FaissVectorStore(store.segment_cache, lambda: store.policy)
        with store.staging() as plain:
            entry = _copy_without_structure(store.shard_folder(segment.id), segment, plain)
            shard = local.open([(plain, entry)], _NO_IDS)
            queries = _intact_queries(store.shard_folder(segment.id), segment)
            rebuilt = ShardWriter(store).copy(shard, local, keep_dtype=True, queries=queries)
        PublishValidator(store).require_intact(f"shard {rebuilt.id[:12]}", rebuilt)
        first, *further = [rebuilt if entry == segment else entry for entry in current.segments(segment.task)]
        changed = replace(
            current,
            shards={**current.shards, segment.task: first},
            appended={**current.appended, **({segment.task: tuple(further)} if further else {})},
        )
        return store.replace_manifest(current, changed)


def _copy_without_structure(source: Path, segment: SegmentEntry, target: Path) -> SegmentEntry:
    """Copy vectors, ids and frame vectors of a segment to a folder; returns the entry of the copy."""
    kept = {name: digest for name, digest in segment.files.items() if name in (VECTORS, IDS, FRAMES)}
    for name in kept:
        shutil.copyfile(source / name, target / name)
    entry = replace(segment, structure=None, files=kept)
    (target / DESCRIPTION).write_text(json.dumps(describe(entry), indent=1) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in target.iterdir())
    entry = replace(entry, files={**hash_files(target), **kept}, bytes=size)
    require_intact(target, entry, verify=True)
    return entry


def _intact_queries(folder: Path, segment: SegmentEntry) -> Vectors | None:
    """The queries that measured the ANN structure of a segment; None without an intact file."""
    if QUERIES not in segment.files:
        return None
    if find_damage(folder, {QUERIES: segment.files[QUERIES]}, None, verify=True):
        return None
    queries: Vectors = np.load(folder / QUERIES, allow_pickle=False)
    return queries
