"""A segment's files (names, ``shard.json``, integrity), and tombstones, which list a task's deleted IDs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from index.arrays import Ids
from index.errors import ShardCorrupt, ShardMissing
from index.files.durable_files import find_damage
from index.files.manifest_format import SegmentEntry, TombstoneEntry

VECTORS, IDS, DESCRIPTION = "vectors.faiss", "ids.npy", "shard.json"
QUERIES, STRUCTURE = "queries.npy", "search.faiss"  # of large segments
DIGEST = "vectors.json"  # of segments whose vectors are in a remote store

_SCHEMA = 1


def display_name(entry: SegmentEntry) -> str:
    """Name a segment in messages."""
    return f"segment {entry.id[:12]} of task {entry.task}"


def describe(entry: SegmentEntry) -> dict[str, Any]:
    """Build the content of ``shard.json``, which describes a segment without the manifest."""
    fields = asdict(entry)
    del fields["id"], fields["bytes"]
    files = {name: digest for name, digest in entry.files.items() if name != DESCRIPTION}
    return {"schema": _SCHEMA, "metric": "inner_product", "dtype": "float16", **fields, "files": files}


def require_intact(folder: Path, entry: SegmentEntry, *, verify: bool) -> None:
    """Compare a segment's folder with its entry: sizes, and with ``verify`` every file's checksum.

    Raises:
        ShardMissing: The folder is missing.
        ShardCorrupt: A file is missing or was altered.
    """
    if not folder.is_dir():
        raise ShardMissing(f"{display_name(entry)}: its folder is missing; restore it from a backup")
    problem = find_damage(folder, entry.files, entry.bytes, verify=verify)
    if problem:
        raise ShardCorrupt(f"{display_name(entry)}: {problem}; restore it from a backup")


def load_ids(folder: Path, entry: SegmentEntry) -> Ids:
    """Load the IDs of a segment's vectors, ``int64 [count]``, ascending; raises ShardCorrupt."""
    ids = _load(folder / IDS, entry.count, display_name(entry))
    ends = (int(ids[0]), int(ids[-1])) if len(ids) else (entry.first_id, entry.last_id)
    if ends != (entry.first_id, entry.last_id) or (np.diff(ids) <= 0).any():
        raise ShardCorrupt(f"{display_name(entry)}: {IDS} contradicts the manifest")
    return ids


def _load(path: Path, count: int, name: str) -> Ids:
    try:
        ids: Ids = np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ShardCorrupt(
            f"{name}: its IDs cannot be read ({error}); restore its folder from a backup"
        ) from error
    if ids.dtype != np.int64 or ids.shape != (count,):
        raise ShardCorrupt(f"{name}: {path.name} contradicts the manifest")
    return ids


TOMBSTONES = "deleted.npy"


def read_tombstones(folder: Path, entry: TombstoneEntry) -> Ids:
    """Load a task's deleted IDs (ascending); raise ShardCorrupt: without them, deleted vectors would be found again."""
    name = f"deletions {entry.id[:12]} of task {entry.task}"
    problem = find_damage(folder, entry.files, entry.bytes, verify=True)
    if problem:
        raise ShardCorrupt(f"{name}: {problem}; restore it from a backup")
    return _load(folder / TOMBSTONES, entry.count, name)
