"""One shard, read only and memory mapped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from index.durable import hash_files
from index.errors import ShardCorrupt, ShardMissing
from index.format import ShardEntry

__all__ = ["DESCRIPTION", "IDS", "VECTORS", "Hits", "Shard"]

VECTORS, IDS, DESCRIPTION = "vectors.faiss", "ids.npy", "shard.json"

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Hits:
    """Best first: ``ids`` int64 and ``scores`` float32 (inner products), of equal length."""

    ids: Ids
    scores: Vectors


class Shard:
    """The frozen vectors of one task.

    Opened with :meth:`open`. The file is mapped: opening costs milliseconds, pages come in as they are searched and are
    shared between processes. Nothing is ever added (faiss aborts the process on a write to a mapped index).
    """

    def __init__(self, entry: ShardEntry, flat: faiss.Index, ids: Ids) -> None:
        self.entry = entry
        self.ids = ids
        self._flat = flat
        order = np.argsort(ids)
        self._sorted, self._positions = ids[order], order

    @property
    def count(self) -> int:
        return self.entry.count

    @property
    def dim(self) -> int:
        return self.entry.dim

    @classmethod
    def open(cls, folder: Path, entry: ShardEntry, *, verify: bool = True) -> Shard:
        """Map a shard.

        Args:
            verify: read every byte and compare checksums; otherwise only sizes and counts.

        Raises:
            ShardMissing: the folder or a file is not there.
            ShardCorrupt: a file was altered or contradicts the manifest.
        """
        missing = [name for name in entry.files if not (folder / name).is_file()]
        if missing:
            raise ShardMissing(f"shard {entry.id[:12]} of task {entry.task}: {', '.join(missing)} is missing")
        size = sum((folder / name).stat().st_size for name in entry.files)
        if size != entry.bytes:
            raise ShardCorrupt(
                f"shard {entry.id[:12]} of task {entry.task}: {size} bytes instead of {entry.bytes}"
            )
        if verify:
            actual = hash_files(folder)
            altered = [name for name, digest in entry.files.items() if actual.get(name) != digest]
            if altered:
                raise ShardCorrupt(
                    f"shard {entry.id[:12]} of task {entry.task}: {', '.join(altered)} was altered"
                )
        try:
            description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            flat = faiss.read_index(str(folder / VECTORS), faiss.IO_FLAG_MMAP_IFC)
            ids = np.load(folder / IDS, allow_pickle=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise ShardCorrupt(
                f"shard {entry.id[:12]} of task {entry.task} cannot be read: {error}"
            ) from error
        stated = tuple(description.get(key) for key in ("task", "release", "fingerprint", "count", "dim"))
        expected = (entry.task, entry.release, entry.fingerprint, entry.count, entry.dim)
        if stated != expected or (flat.ntotal, flat.d) != (entry.count, entry.dim) or len(ids) != entry.count:
            raise ShardCorrupt(f"shard {entry.id[:12]} of task {entry.task} contradicts the manifest")
        return cls(entry, flat, ids)

    def search(self, query: Vectors, k: int, exclude: Iterable[int] | Ids = ()) -> Hits:
        """The k nearest by inner product.

        Args:
            query: ``float32 [dim]``.
            exclude: ids that were deleted.
        """
        excluded = np.fromiter(exclude, np.int64) if not isinstance(exclude, np.ndarray) else exclude
        parameters = None
        if len(excluded):
            # A flat index numbers its vectors by position, so that is what is ruled out.
            positions = self._find(excluded)
            ruled_out = faiss.IDSelectorBatch(positions[positions >= 0])
            parameters = faiss.SearchParameters(sel=faiss.IDSelectorNot(ruled_out))
        scores, found = self._flat.search(
            np.ascontiguousarray(query[None], np.float32), min(k, self.count), params=parameters
        )
        present = found[0] >= 0  # faiss fills up with -1 where fewer than k are left
        return Hits(self.ids[found[0][present]], scores[0][present])

    def vectors(self, ids: Ids) -> Vectors:
        """Stored vectors ``[len(ids), dim]``.

        Raises:
            ShardMissing: an id is not in this shard.
        """
        positions = self._find(np.asarray(ids, np.int64))
        if (positions < 0).any():
            unknown = np.asarray(ids)[positions < 0]
            raise ShardMissing(f"task {self.entry.task} has no vector {int(unknown[0])}")
        if not len(positions):
            return np.empty((0, self.dim), np.float32)
        return np.asarray(self._flat.reconstruct_batch(positions), np.float32)

    def _find(self, ids: Ids) -> Ids:
        """Positions of ids; −1 where there is none."""
        slots = np.searchsorted(self._sorted, ids).clip(max=max(0, self.count - 1))
        return np.where(self._sorted[slots] == ids, self._positions[slots], -1)
