"""One folder of vectors, read only and memory mapped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.errors import ShardCorrupt, ShardMissing
from index.files.durable_files import damage
from index.files.manifest_format import AnnStructure, SegmentEntry
from index.hits import Hits
from index.scanning.ann_index import Candidates, open_candidates
from index.scanning.exact_scan import Alive, ExactScan, Found, are_alive, count_alive, dtype_of
from index.scanning.gpu_scan import GpuScan

__all__ = [
    "DESCRIPTION",
    "IDS",
    "QUERIES",
    "STRUCTURE",
    "VECTORS",
    "Segment",
    "describe",
    "require_queries",
    "require_whole",
]

VECTORS, IDS, DESCRIPTION = "vectors.faiss", "ids.npy", "shard.json"
QUERIES, STRUCTURE = "queries.npy", "search.faiss"  # of large segments
_MEASURED = 3  # schema of those that were measured for a structure
_EMPTY = 4  # schema of those without vectors
_SCHEMAS = {"float32": 1, "float16": 2}  # in which each precision came

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Segment:
    """The frozen vectors of one folder, in half precision; scores are summed in single precision.

    A cosine of rounded unit vectors is off by less than 0.0005, and a scan reads half the bytes.

    Opened with :meth:`open`. The file is mapped: opening costs milliseconds, pages come in as they are searched
    and are shared between processes. Nothing is ever added (faiss aborts the process on a write to a mapped index).

    Attributes:
        entry: what the manifest says about it.
        ids: ``int64 [n]``, ascending; the id of each row.
    """

    def __init__(
        self,
        entry: SegmentEntry,
        exact: ExactScan,
        ids: Ids,
        *,
        candidates: Candidates | None = None,
        gpu: bool = False,
        mapped: Sequence[Path] = (),
    ) -> None:
        self.entry = entry
        self.ids = ids
        self._exact = exact
        self._candidates = candidates
        self._gpu = GpuScan(exact) if gpu else None
        self._mapped = {path: _stamp(path) for path in mapped}

    @property
    def count(self) -> int:
        return self.entry.count

    @property
    def dim(self) -> int:
        return self.entry.dim

    @classmethod
    def open(cls, folder: Path, entry: SegmentEntry, *, verify: bool = True, gpu: bool = False) -> Segment:
        """Map a folder.

        Args:
            verify: read every byte and compare checksums; otherwise only sizes and counts.
            gpu: search a copy on a GPU, exactly; the file is mapped as well.

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
            if description != describe(entry):
                raise ShardCorrupt(f"{name}: {DESCRIPTION} contradicts the manifest")
            if dtype_of(flat) != entry.dtype or (flat.ntotal, flat.d) != (entry.count, entry.dim):
                raise ShardCorrupt(f"{name}: {VECTORS} contradicts the manifest")
            exact, kind = ExactScan(flat), entry.structure.kind if entry.structure else "flat"
            candidates = None
            if kind != "flat" and not gpu:
                candidates = open_candidates(folder / STRUCTURE, kind, exact)
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            raise ShardCorrupt(f"{name}: it cannot be read ({error}); restore it from a backup") from error
        if not _fits(ids, entry):
            raise ShardCorrupt(f"{name}: {IDS} contradicts the manifest")
        mapped = [folder / VECTORS, *([folder / STRUCTURE] if candidates else [])]
        return cls(entry, exact, ids, candidates=candidates, gpu=gpu, mapped=mapped)

    def changed(self) -> bool:
        """Whether a mapped file has another size by now, or was replaced by a whole one. One that was removed, or
        replaced by something else, stays mapped as it was.
        """
        for path, then in self._mapped.items():
            now = _stamp(path)
            if now is None or then is None or now == then:
                continue
            same_file, same_size = now[:2] == then[:2], now[2] == then[2]
            if same_file or same_size:
                return True
        return False

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

        Exact, unless the entry names a search structure; scores are always the exact ones.

        Args:
            query: ``float32 [dim]``, finite.
            alive: which rows may be found, see :meth:`without`; all by default.

        Raises:
            ValueError: the query is not a finite vector of this width, or ``k`` is below one.
        """
        query = np.ascontiguousarray(query, np.float32)
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        # A sum of squares is finite where the numbers are, or they are so large that it has to be looked at them.
        if query.shape != (self.dim,) or not (isfinite(query @ query) or np.isfinite(query).all()):
            raise ValueError(_asked(self.entry))
        structure, candidates = self.entry.structure, self._candidates
        if structure is not None and candidates is not None:
            best = self._approximate(structure, candidates, query, k, alive)
        elif self._gpu is not None:
            best = self._gpu.search_many(query[None], k, alive)[0]
        else:
            best = self._exact.search(query, k, alive)
        return Hits(self.ids[best.rows], best.scores)

    def search_many(self, queries: Vectors, k: int, alive: Alive | None = None) -> list[Hits]:
        """What :meth:`search` finds for each query; many together are faster than one after the other.

        Args:
            queries: ``float32 [n, dim]``, finite.
        """
        queries = require_queries(queries, k, self.entry)
        if self._candidates is not None:
            return [self.search(query, k, alive) for query in queries]
        found = (self._gpu or self._exact).search_many(queries, k, alive)
        return [Hits(self.ids[best.rows], best.scores) for best in found]

    def vectors(self, ids: Ids) -> Vectors:
        """Stored vectors ``float32 [len(ids), dim]``, as they were rounded.

        Raises:
            ShardMissing: an id is not in this shard.
        """
        ids = np.asarray(ids, np.int64)
        rows = self.rows(ids)
        if (rows < 0).any():
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[rows < 0][0])}")
        return self._exact.vectors(rows)

    def _approximate(
        self, structure: AnnStructure, candidates: Candidates, query: Vectors, k: int, alive: Alive | None
    ) -> Found:
        """By the structure as far down as its recall was measured; exactly where it cannot tell."""
        living = self.count if alive is None else count_alive(alive)
        if k * self.count <= structure.depth * living:
            best = candidates.search(query, structure.parameter)
            # Which rows may be found can have to do with the query, so a structure that skips the others may miss
            # the best that are left. The best of all are found as measured, and those of them that are alive are the
            # best that are alive.
            kept = slice(None) if alive is None else are_alive(alive, best.rows)
            rows, scores = best.rows[kept][:k], best.scores[kept][:k]
            if len(rows) == k:
                return Found(rows, scores)
        return self._exact.search(query, k, alive)

    def _known(self, ids: Ids) -> Ids:
        """Rows of those ids that are here."""
        rows = self.rows(np.asarray(ids, np.int64))
        return np.asarray(rows[rows >= 0], np.int64)

    def rows(self, ids: Ids) -> Ids:
        """Row of each id; −1 where there is none."""
        slots = np.searchsorted(self.ids, ids).clip(max=self.count - 1)
        return np.where(self.ids[slots] == ids, slots, -1)


def require_queries(queries: Vectors, k: int, entry: SegmentEntry) -> Vectors:
    """``float32 [n, dim]``, in the order of rows.

    Raises:
        ValueError: they are not finite vectors of a task's width, or ``k`` is below one.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    queries = np.ascontiguousarray(queries, np.float32)
    if queries.ndim != 2 or queries.shape[1] != entry.dim or not np.isfinite(queries).all():
        raise ValueError(_asked(entry))
    return queries


def require_whole(folder: Path, entry: SegmentEntry, *, verify: bool) -> None:
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


def describe(entry: SegmentEntry) -> dict[str, Any]:
    """What ``shard.json`` says: enough to know a shard without the manifest."""
    measured = {} if entry.structure is None else {"structure": asdict(entry.structure)}
    schema = _MEASURED if measured or entry.place else _SCHEMAS.get(entry.dtype)
    return {
        "schema": schema if entry.count else _EMPTY,
        "task": entry.task,
        "release": entry.release,
        "fingerprint": entry.fingerprint,
        "count": entry.count,
        "dim": entry.dim,
        "first_id": entry.first_id,
        "last_id": entry.last_id,
        "metric": "inner_product",
        "dtype": entry.dtype,
        **measured,
        **({"place": entry.place} if entry.place else {}),
        "files": {name: digest for name, digest in entry.files.items() if name != DESCRIPTION},
    }


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Which file it is, and how large; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size


def _asked(entry: SegmentEntry) -> str:
    return f"a query of task {entry.task} must be {entry.dim} finite numbers"


def _name(entry: SegmentEntry) -> str:
    return f"shard {entry.id[:12]} of task {entry.task}"


def _fits(ids: npt.NDArray[Any], entry: SegmentEntry) -> bool:
    return (
        ids.dtype == np.int64
        and ids.shape == (entry.count,)
        and (int(ids[0]), int(ids[-1])) == (entry.first_id, entry.last_id)
        and bool((np.diff(ids) > 0).all())
    )
