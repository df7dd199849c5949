"""Tombstones: a file with the deleted ids of a task, next to its segments, which never change."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from index.arrays import Ids
from index.errors import ShardCorrupt
from index.files.durable_files import find_damage
from index.files.manifest_format import TombstoneEntry

__all__ = ["TOMBSTONES", "read_tombstones"]

TOMBSTONES = "deleted.npy"


def read_tombstones(folder: Path, entry: TombstoneEntry) -> Ids:
    """Deleted ids of a task, ``int64 [count]``, ascending.

    Raises:
        ShardCorrupt: The file is missing or was altered. Without it, searches would return deleted vectors again.
    """
    name = f"deletions {entry.id[:12]} of task {entry.task}"
    problem = find_damage(folder, entry.files, entry.bytes, verify=True)
    if problem:
        raise ShardCorrupt(f"{name}: {problem}; restore it from a backup")
    try:
        ids: Ids = np.load(folder / TOMBSTONES, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ShardCorrupt(f"{name}: it cannot be read ({error}); restore it from a backup") from error
    if ids.dtype != np.int64 or ids.shape != (entry.count,):
        raise ShardCorrupt(f"{name}: {TOMBSTONES} contradicts the manifest")
    return ids
