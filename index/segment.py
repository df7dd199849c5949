"""One folder of vectors, read only and memory mapped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.durable import damage
from index.errors import ShardCorrupt, ShardMissing
from index.format import ShardEntry
from index.threads import search_threads

__all__ = ["DESCRIPTION", "IDS", "VECTORS", "Alive", "Hits", "Segment", "describe", "empty", "require_whole"]

VECTORS, IDS, DESCRIPTION = "vectors.faiss", "ids.npy", "shard.json"
_SCHEMAS = {"float32": 1, "float16": 2}  # in which each precision came

Alive = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Hits:
    """Best first: ``ids`` int64 and ``scores`` float32 (inner products), of equal length."""

    ids: Ids
    scores: Vectors


class Segment:
    """The frozen vectors of one folder, in half precision; scores are summed in single precision.

    A cosine of rounded unit vectors is off by less than 0.0005, and a scan reads half the bytes.

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
    def open(cls, folder: Path, entry: ShardEntry, *, verify: bool = True) -> Segment:
        """Map a folder.

        Args:
            verify: read every byte and compare checksums; otherwise only sizes and counts.

        Raises:
            ShardMissing: the folder is not there.
            ShardCorrupt: a file is missing, was altered, or contradicts the manifest.
        """
        require_whole(
            folder, entry, verify=verify
        )  # before faiss reads a byte: its readers trust what they get
        name = _name(entry)
        try:
            description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            flat = faiss.read_index(str(folder / VECTORS), faiss.IO_FLAG_MMAP_IFC)
            ids = np.load(folder / IDS, allow_pickle=False)
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            raise ShardCorrupt(f"{name}: it cannot be read ({error}); restore it from a backup") from error
        if description != describe(entry):
            raise ShardCorrupt(f"{name}: {DESCRIPTION} contradicts the manifest")
        if _dtype(flat) != entry.dtype or (flat.ntotal, flat.d) != (entry.count, entry.dim):
            raise ShardCorrupt(f"{name}: {VECTORS} contradicts the manifest")
        if not _fits(ids, entry):
            raise ShardCorrupt(f"{name}: {IDS} contradicts the manifest")
        return cls(entry, flat, ids)

    def without(self, ids: Ids, among: Ids | None = None) -> Alive:
        """One bit for each row, for searches that leave these ids out; unknown ones do not matter.

        Args:
            among: those that may be found at all, where not all may.
        """
        alive = np.full(self.count, among is None)
        if among is not None:
            alive[self._known(among)] = True
        alive[self._known(ids)] = False
        return np.packbits(alive, bitorder="little")

    def search(self, query: Vectors, k: int, alive: Alive | None = None) -> Hits:
        """The k nearest by inner product. Equal scores are ordered by id, also where k cuts between them.

        Args:
            query: ``float32 [dim]``, finite.
            alive: which rows may be found, see :meth:`without`; all by default.

        Raises:
            ValueError: the query is not a finite vector of this width, or ``k`` is below one.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        query = np.ascontiguousarray(query, np.float32)
        if query.shape != (self.dim,) or not np.isfinite(query).all():
            raise ValueError(f"a query of task {self.entry.task} must be {self.dim} finite numbers")
        # faiss leaves open which of equal scores survive the cut: look further until the cut is between unequal ones.
        wanted = k + 1
        while True:
            rows, scores = self._search(query, min(wanted, self.count), alive)
            if len(rows) <= k or len(rows) < wanted or scores[-1] < scores[k - 1]:
                break
            wanted *= 2
        order = np.lexsort((rows, -scores))[:k]
        return Hits(self.ids[rows[order]], scores[order])

    def vectors(self, ids: Ids) -> Vectors:
        """Stored vectors ``float32 [len(ids), dim]``, as they were rounded.

        Raises:
            ShardMissing: an id is not in this shard.
        """
        ids = np.asarray(ids, np.int64)
        rows = self.rows(ids)
        if (rows < 0).any():
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[rows < 0][0])}")
        if not len(rows):
            return np.empty((0, self.dim), np.float32)
        return np.asarray(self._flat.reconstruct_batch(rows), np.float32)

    def _search(self, query: Vectors, wanted: int, alive: Alive | None) -> tuple[Ids, Vectors]:
        """The best ``wanted`` rows that are alive, or all of them where there are fewer."""
        if alive is None:
            return self._scan(query, wanted)
        # Asking faiss about every row takes twice as long as the scan itself, so where few rows are dead it is asked
        # for some more and the dead ones are dropped; only if they crowd the top does it have to ask.
        more = 2 * wanted * self.count // max(int(np.bitwise_count(alive).sum()), 1)
        if more <= min(4 * wanted, self.count):
            rows, scores = self._scan(query, more)
            kept = (alive[rows >> 3] >> (rows & 7)) & 1 == 1
            if kept.sum() >= wanted:
                return rows[kept][:wanted], scores[kept][:wanted]
        chosen = faiss.IDSelectorBitmap(self.count, faiss.swig_ptr(alive))
        parameters = faiss.SearchParameters()
        parameters.sel = chosen
        return self._scan(query, wanted, parameters)

    def _scan(
        self, query: Vectors, k: int, parameters: faiss.SearchParameters | None = None
    ) -> tuple[Ids, Vectors]:
        with search_threads():
            scores, found = self._flat.search(query[None], k, params=parameters)
        present = found[0] >= 0  # faiss fills up with −1 where fewer than k are left
        return found[0][present], scores[0][present]

    def _known(self, ids: Ids) -> Ids:
        """Rows of those ids that are here."""
        rows = self.rows(np.asarray(ids, np.int64))
        return np.asarray(rows[rows >= 0], np.int64)

    def rows(self, ids: Ids) -> Ids:
        """Row of each id; −1 where there is none."""
        slots = np.searchsorted(self.ids, ids).clip(max=self.count - 1)
        return np.where(self.ids[slots] == ids, slots, -1)


def require_whole(folder: Path, entry: ShardEntry, *, verify: bool) -> None:
    """Compare a folder with its entry: sizes, and with ``verify`` every byte.

    Raises:
        ShardMissing: the folder is not there.
        ShardCorrupt: a file is missing or was altered.
    """
    if not folder.is_dir():
        raise ShardMissing(f"{_name(entry)}: its folder is missing; restore it from a backup")
    problem = damage(folder, entry.files, entry.bytes, verify=verify)
    if problem:
        raise ShardCorrupt(f"{_name(entry)}: {problem}; restore it from a backup")


def describe(entry: ShardEntry) -> dict[str, Any]:
    """What ``shard.json`` says: enough to know a shard without the manifest."""
    return {
        "schema": 3 if entry.place else _SCHEMAS.get(entry.dtype),
        "task": entry.task,
        "release": entry.release,
        "fingerprint": entry.fingerprint,
        "count": entry.count,
        "dim": entry.dim,
        "first_id": entry.first_id,
        "last_id": entry.last_id,
        "metric": "inner_product",
        "dtype": entry.dtype,
        **({"place": entry.place} if entry.place else {}),
        "files": {name: digest for name, digest in entry.files.items() if name != DESCRIPTION},
    }


def empty(dim: int, dtype: str) -> faiss.Index:
    """An index of stored vectors, without any."""
    if dtype == "float32":
        return faiss.IndexFlatIP(dim)
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)


def _name(entry: ShardEntry) -> str:
    return f"shard {entry.id[:12]} of task {entry.task}"


def _dtype(index: faiss.Index) -> str:
    """Of the vectors in an index; an empty text where it is not one of ours."""
    if isinstance(index, faiss.IndexFlatIP):
        return "float32"
    half = isinstance(index, faiss.IndexScalarQuantizer) and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16
    return "float16" if half and index.metric_type == faiss.METRIC_INNER_PRODUCT else ""


def _fits(ids: npt.NDArray[Any], entry: ShardEntry) -> bool:
    return (
        ids.dtype == np.int64
        and ids.shape == (entry.count,)
        and (int(ids[0]), int(ids[-1])) == (entry.first_id, entry.last_id)
        and bool((np.diff(ids) > 0).all())
    )
