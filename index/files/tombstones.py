"""What was deleted from a task: a small file of ids beside its vectors, which never change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardCorrupt
from index.files.durable_files import damage
from index.files.manifest_format import TombstoneEntry

__all__ = ["DELETED", "read_tombstones"]

DELETED = "deleted.npy"

Ids = npt.NDArray[np.int64]


def read_tombstones(folder: Path, entry: TombstoneEntry | None) -> Ids:
    """Deleted ids, ascending; none without an entry.

    Raises:
        ShardCorrupt: the file is missing or was altered. Without it, what was deleted would be found again.
    """
    if entry is None:
        return np.empty(0, np.int64)
    name = f"deletions {entry.id[:12]} of task {entry.task}"
    problem = damage(folder, entry.files, entry.bytes, verify=True)
    if problem:
        raise ShardCorrupt(f"{name}: {problem}; restore it from a backup")
    try:
        ids: Ids = np.load(folder / DELETED, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ShardCorrupt(f"{name}: it cannot be read ({error}); restore it from a backup") from error
    if ids.dtype != np.int64 or ids.shape != (entry.count,):
        raise ShardCorrupt(f"{name}: {DELETED} contradicts the manifest")
    return ids
