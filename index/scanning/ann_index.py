"""Search structures: less is read than every vector, if it is measured that hardly anything is missed.

A segment of more rows than :attr:`AnnPolicy.exact_rows` gets one beside its exact vectors, the first of these that passes:

    ivf    k-means lists of 8-bit codes; the ``parameter`` nearest lists are read (Jégou, Douze, Schmid, "Product
           quantization for nearest neighbor search", TPAMI 2011)
    hnsw   a graph over the exact vectors, walked with a queue of ``parameter`` (Malkov, Yashunin, "Efficient and robust
           approximate nearest neighbor search using hierarchical navigable small world graphs", TPAMI 2020)
    sq8    every vector, in 8 bits for each dimension; the ``parameter`` · k best are compared exactly

It is asked only which rows may be among the best. Their scores are those of the exact vectors.

What was built on videos may be useless for texts: they lie elsewhere, and their nearest videos are spread over many
lists. The gate is therefore measured with queries of training captions, against exact search, and the smallest
parameter that holds is kept. If none holds with at most half of the work of reading everything, the segment is
searched exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.files.manifest_format import AnnStructure
from index.scanning.exact_scan import ExactScan, Found
from index.scanning.search_options import AnnPolicy
from index.scanning.search_threads import search_threads

__all__ = [
    "DEPTH",
    "GATE_DEPTHS",
    "Candidates",
    "Measured",
    "Write",
    "build",
    "gated",
    "open_candidates",
    "write_candidates",
]

DEPTH = 100  # results that a structure is asked for; deeper searches are exact
GATE_DEPTHS = (10, DEPTH)  # the recall must hold among so many

_MIN_QUERIES, _MAX_QUERIES = 100, 1000  # fewer say too little, more say little else
_MOST_WORK = 0.5  # of reading every vector; a structure that saves less is not worth its room
_LINKS = 32  # of a graph's nodes
_JUMP = 4  # following a link costs as much as reading so many vectors in order
_LOWEST = {"ivf": 1, "hnsw": DEPTH + 1, "sq8": 1}
_HIGHEST = {"hnsw": 4096, "sq8": 32}
_BEAM = 128  # queue while a graph is built
_MARGIN = 4  # candidates for each result, where they are ranked by 8-bit codes
_LISTS, _ROUNDS = 8192, 10  # of k-means, at most
_SAMPLE = 262_144  # vectors that k-means looks at, at most, and 64 for each list
_BLOCK = 65_536  # vectors in single precision at once
_SEED = 1234

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]
Index = Any  # of faiss, whose types lack most of what is used here
Write = Callable[[bytes], object]
Working = Callable[[], object]


def _quietly() -> None:
    """Nobody waits."""


class Candidates:
    """Finds rows that may be among the best."""

    def __init__(self, kind: str, index: Index, exact: ExactScan) -> None:
        self._kind = kind
        self._index = index
        self._exact = exact
        if kind == "hnsw" and index.storage is None:  # read from its file
            index.storage, index.own_fields = exact.flat, False

    def find(self, query: Vectors, k: int, parameter: int) -> tuple[Rows, Scores]:
        """The k best as far as the structure can tell, with the scores that it ranks by; all that it has if fewer.

        Args:
            query: ``float32 [dim]``.
            parameter: how thorough it is, see above.
        """
        k = min(k, self._exact.count)
        asked: Any = None
        if self._kind == "ivf":
            asked = faiss.SearchParametersIVF()
            asked.nprobe = parameter
        elif self._kind == "hnsw":
            asked = faiss.SearchParametersHNSW()  # type: ignore[attr-defined]
            asked.efSearch = max(parameter, k)
        with search_threads():
            scores, rows = self._index.search(query[None], k, params=asked)
        present = rows[0] >= 0
        return rows[0][present], scores[0][present]

    def search(self, query: Vectors, parameter: int) -> Found:
        """The :data:`DEPTH` best of what it finds, scored from the exact vectors; equal scores are ordered by row.

        Whoever wants fewer takes the first of them, so that a longer list begins with every shorter one.
        """
        wanted = DEPTH * {"ivf": _MARGIN, "hnsw": 1, "sq8": parameter}[self._kind] + 1
        while True:
            rows, ranks = self.find(query, wanted, parameter)
            best = self._exact.search_rows(query, rows, DEPTH)
            # Equal vectors have equal ranks: look further until none that equals the last one can be missing.
            if len(rows) < wanted or ranks[-1] < ranks[rows == best.rows[-1]][0]:
                return best
            wanted *= 2

    def parameters(self, queries: Vectors) -> Iterator[int]:
        """Some to try, each twice the one before, for as long as they are worth their work."""
        parameter = _LOWEST[self._kind]
        highest = self._index.nlist if self._kind == "ivf" else _HIGHEST[self._kind]
        while parameter <= highest and self.work(queries, parameter) <= _MOST_WORK:
            yield parameter
            parameter *= 2

    def work(self, queries: Vectors, parameter: int) -> float:
        """What a search reads, as a share of what an exact one does."""
        count = self._exact.count
        if self._kind == "sq8":
            return float(self._index.code_size / self._exact.code_size)
        if self._kind == "ivf":
            _, lists = self._index.quantizer.search(queries, parameter)
            sizes = np.array([self._index.invlists.list_size(i) for i in range(self._index.nlist)])
            return float(sizes[lists].sum(axis=1).mean() + self._index.nlist) / count
        walked: Any = faiss.cvar.hnsw_stats  # type: ignore[attr-defined]
        walked.reset()
        for query in queries:
            self.find(query, DEPTH, parameter)
        return float(_JUMP * walked.ndis / len(queries) / count)


def build(kind: str, exact: ExactScan, heartbeat: Working = _quietly) -> Index:
    """A structure of this kind over stored vectors, which are read block by block.

    Args:
        heartbeat: called again and again.
    """
    dim, count, product = exact.dim, exact.count, faiss.METRIC_INNER_PRODUCT
    sample = _BLOCK
    if kind == "ivf":
        lists = min(int(4 * math.sqrt(count)), _LISTS)
        quantizer, code = faiss.IndexFlatIP(dim), faiss.ScalarQuantizer.QT_8bit_uniform
        index: Index = faiss.IndexIVFScalarQuantizer(quantizer, dim, lists, code, product, False)
        index.cp.spherical, index.cp.niter = True, _ROUNDS
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
        sample = min(64 * lists, _SAMPLE)
    elif kind == "hnsw":
        index = faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_fp16, _LINKS, product)  # type: ignore[arg-type]
        index.hnsw.efConstruction = _BEAM
    else:
        index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit_uniform, product)
    chosen = np.random.default_rng(_SEED).permutation(count)[:sample]
    index.train(exact.vectors(np.sort(chosen)))
    for start in range(0, count, _BLOCK):
        heartbeat()
        index.add(exact.vectors(np.arange(start, min(start + _BLOCK, count))))
    return index


def write_candidates(kind: str, index: Index, write: Write) -> None:
    """Write a structure that was built. A graph goes without the vectors, which lie beside it."""
    flags = faiss.IO_FLAG_SKIP_STORAGE if kind == "hnsw" else 0
    faiss.write_index(index, faiss.PyCallbackIOWriter(write), flags)  # type: ignore[attr-defined]


def open_candidates(path: Path, kind: str, exact: ExactScan) -> Candidates:
    """Map a structure that was written.

    Raises:
        RuntimeError: it cannot be read.
        ValueError: it is not one of these vectors.
    """
    flags = faiss.IO_FLAG_MMAP if kind == "ivf" else faiss.IO_FLAG_MMAP_IFC
    index: Index = faiss.read_index(str(path), flags)
    of = {"ivf": faiss.IndexIVFScalarQuantizer, "hnsw": faiss.IndexHNSWSQ, "sq8": faiss.IndexScalarQuantizer}
    fits = (index.ntotal, index.d) == (exact.count, exact.dim)
    if not fits or not isinstance(index, of.get(kind, ())):
        raise ValueError(f"it is no {kind} of {exact.count} vectors")
    if kind == "ivf":
        # It would start 32 threads for each search, to read ahead; that takes ten times as long as the search itself.
        faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0  # type: ignore[attr-defined]
    return Candidates(kind, index, exact)


@dataclass(frozen=True)
class Measured:
    """What the gate found: the structure to search with, its index unless that is ``flat``, and the queries."""

    structure: AnnStructure
    index: Index | None
    queries: Vectors


def gated(
    exact: ExactScan, queries: Vectors, policy: AnnPolicy, heartbeat: Working = _quietly
) -> Measured | None:
    """The first structure that passes the gate; kind ``flat`` and no index where none does.

    None, without building anything, where the segment is small or there are too few queries to tell.

    Args:
        queries: ``float32 [n, dim]``, of training captions; a thousand of them are used.
        heartbeat: called again and again, for whoever must see that it goes on; building takes minutes.
    """
    if exact.count <= max(policy.exact_rows, DEPTH) or len(queries) < _MIN_QUERIES:
        return None
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(queries))[:_MAX_QUERIES])
    queries = np.ascontiguousarray(queries[chosen], np.float32)
    scores = np.stack([found.scores for found in exact.search_many(queries, DEPTH)])
    cuts = [scores[:, depth - 1] for depth in GATE_DEPTHS]
    refused: dict[str, float] = {}

    def measured(kind: str, parameter: int, recall: float, work: float, index: Index | None) -> Measured:
        structure = AnnStructure(
            kind, parameter, recall, policy.target, DEPTH, len(queries), exact.count, work, refused
        )
        return Measured(structure, index, queries)

    for kind in policy.kinds:
        index = build(kind, exact, heartbeat)
        candidates = Candidates(kind, index, exact)
        recall = partial(_recall, candidates, queries, cuts)
        best = 0.0
        for parameter in candidates.parameters(queries):
            heartbeat()
            best = recall(parameter)
            if best >= policy.target:
                smallest, reached = _smallest(recall, _LOWEST[kind], parameter, best, policy.target)
                return measured(kind, smallest, reached, candidates.work(queries, smallest), index)
        refused[kind] = best
    return measured("flat", 0, 1.0, 1.0, None)


def _smallest(
    recall: Callable[[int], float], lowest: int, holds: int, reached: float, target: float
) -> tuple[int, float]:
    """The smallest parameter between half of one that holds and itself, and its recall."""
    fails = max(holds // 2, lowest - 1)
    while holds - fails > 1:
        middle = (holds + fails) // 2
        at = recall(middle)
        if at >= target:
            holds, reached = middle, at
        else:
            fails = middle
    return holds, reached


def _recall(candidates: Candidates, queries: Vectors, cuts: Sequence[Scores], parameter: int) -> float:
    """The lower one of the recalls at the gate's depths. What scores as the last one that belongs there is as good.

    Args:
        cuts: for each depth, the exact score of each query's last result.
    """
    found = [candidates.search(query, parameter).scores for query in queries]
    return min(
        sum(int((scores[:depth] >= last).sum()) for scores, last in zip(found, cut, strict=True))
        / (depth * len(queries))
        for depth, cut in zip(GATE_DEPTHS, cuts, strict=True)
    )
