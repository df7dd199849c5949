"""One shard, read only and memory mapped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.durable import damage
from index.errors import ShardCorrupt, ShardMissing
from index.format import SCHEMA, ShardEntry
from index.threads import search_threads

__all__ = ["DESCRIPTION", "IDS", "VECTORS", "Hits", "Shard", "describe"]

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

    Opened with :meth:`open`. The file is mapped: opening costs milliseconds, pages come in as they are searched
    and are shared between processes. Nothing is ever added (faiss aborts the process on a write to a mapped index).

    Attributes:
        entry: what the manifest says about it.
        ids: ``int64 [n]``, ascending; the id of each row.
    """

    def __init__(self, entry: ShardEntry, flat: faiss.Index, ids: Ids) -> None:
        self.entry = entry
        self.ids = ids
        self._flat = flat

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
            ShardMissing: the folder is not there.
            ShardCorrupt: a file is missing, was altered, or contradicts the manifest.
        """
        name = f"shard {entry.id[:12]} of task {entry.task}"
        if not folder.is_dir():
            raise ShardMissing(f"{name}: its folder is missing; restore it from a backup")
        # Before faiss reads a byte: its readers trust what they are given.
        problem = damage(folder, entry.files, entry.bytes, verify=verify)
        if problem:
            raise ShardCorrupt(f"{name}: {problem}; restore it from a backup")
        try:
            description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            flat = faiss.read_index(str(folder / VECTORS), faiss.IO_FLAG_MMAP_IFC)
            ids = np.load(folder / IDS, allow_pickle=False)
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            raise ShardCorrupt(f"{name}: it cannot be read ({error}); restore it from a backup") from error
        if description != describe(entry):
            raise ShardCorrupt(f"{name}: {DESCRIPTION} contradicts the manifest")
        if not isinstance(flat, faiss.IndexFlatIP) or (flat.ntotal, flat.d) != (entry.count, entry.dim):
            raise ShardCorrupt(f"{name}: {VECTORS} contradicts the manifest")
        if not _fits(ids, entry):
            raise ShardCorrupt(f"{name}: {IDS} contradicts the manifest")
        return cls(entry, flat, ids)

    def search(
        self, query: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> Hits:
        """The k nearest by inner product. Equal scores are ordered by id, also where k cuts between them.

        Args:
            query: ``float32 [dim]``, finite.
            exclude: ids that were deleted; unknown ones do not matter.
            among: ids that may be found, where not all may; unknown ones do not matter.

        Raises:
            ValueError: the query is not a finite vector of this width, or ``k`` is below one.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        query = np.ascontiguousarray(query, np.float32)
        if query.shape != (self.dim,) or not np.isfinite(query).all():
            raise ValueError(f"a query of task {self.entry.task} must be {self.dim} finite numbers")
        excluded = exclude if isinstance(exclude, np.ndarray) else np.fromiter(exclude, np.int64)
        # faiss leaves open which of equal scores survive the cut: look further until the cut is between unequal ones.
        wanted = k + 1
        while True:
            rows, scores = self._search(query, min(wanted, self.count), excluded, among)
            if len(rows) <= k or len(rows) < wanted or scores[-1] < scores[k - 1]:
                break
            wanted *= 2
        order = np.lexsort((rows, -scores))[:k]
        return Hits(self.ids[rows[order]], scores[order])

    def vectors(self, ids: Ids) -> Vectors:
        """Stored vectors ``[len(ids), dim]``.

        Raises:
            ShardMissing: an id is not in this shard.
        """
        ids = np.asarray(ids, np.int64)
        rows = self._rows(ids)
        if (rows < 0).any():
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[rows < 0][0])}")
        if not len(rows):
            return np.empty((0, self.dim), np.float32)
        return np.asarray(self._flat.reconstruct_batch(rows), np.float32)

    def _search(self, query: Vectors, k: int, excluded: Ids, among: Ids | None) -> tuple[Ids, Vectors]:
        parameters = None
        if len(excluded) or among is not None:
            # A flat index numbers its vectors by position, so those are chosen: a bit for each.
            chosen = np.full(self.count, among is None)
            if among is not None:
                chosen[self._known_rows(among)] = True
            chosen[self._known_rows(excluded)] = False
            bits = np.packbits(chosen, bitorder="little")
            selector = faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg, arg-type]
            parameters = faiss.SearchParameters()
            parameters.sel = selector
        with search_threads():
            scores, found = self._flat.search(query[None], k, params=parameters)
        present = found[0] >= 0  # faiss fills up with −1 where fewer than k are left
        return found[0][present], scores[0][present]

    def _known_rows(self, ids: Ids) -> Ids:
        """Rows of those ids that are here."""
        rows = self._rows(ids)
        return np.asarray(rows[rows >= 0], np.int64)

    def _rows(self, ids: Ids) -> Ids:
        """Row of each id; −1 where there is none."""
        slots = np.searchsorted(self.ids, ids).clip(max=self.count - 1)
        return np.where(self.ids[slots] == ids, slots, -1)


def describe(entry: ShardEntry) -> dict[str, Any]:
    """What ``shard.json`` says: enough to know a shard without the manifest."""
    return {
        "schema": SCHEMA,
        "task": entry.task,
        "release": entry.release,
        "fingerprint": entry.fingerprint,
        "count": entry.count,
        "dim": entry.dim,
        "first_id": entry.first_id,
        "last_id": entry.last_id,
        "metric": "inner_product",
        "dtype": "float32",
        "files": {name: digest for name, digest in entry.files.items() if name != DESCRIPTION},
    }


def _fits(ids: npt.NDArray[Any], entry: ShardEntry) -> bool:
    return (
        ids.dtype == np.int64
        and ids.shape == (entry.count,)
        and (int(ids[0]), int(ids[-1])) == (entry.first_id, entry.last_id)
        and bool((np.diff(ids) > 0).all())
    )
