"""ANN structures (approximate nearest neighbors), which let a search read less than every vector.

    ivf    k-means lists of 8-bit codes; the ``parameter`` nearest lists are probed (Jégou, Douze, Schmid, "Product
           quantization for nearest neighbor search", TPAMI 2011)
    sq8    every vector with 8 bits per dimension; the ``parameter`` · k best are compared exactly

A structure only proposes candidate rows. Their scores are computed from the exact vectors.

A segment with more rows than :attr:`AnnPolicy.exact_rows` gets the first kind of structure that passes the *recall
gate*. A structure built on videos may be useless for texts: text vectors lie in another region, and their nearest
videos are spread over many lists. The gate therefore takes captions that were not learned as queries, measures recall
against exact search, and keeps the smallest parameter that reaches the target. If no kind reaches it with at most half
the work of an exact scan, the segment is scanned exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from index.arrays import Scores, Vectors, batches
from index.files.manifest_format import AnnStructure
from index.scanning.exact_scan import ExactScan, RowHits, search_index
from index.store_options import AnnPolicy

DEPTH = 100  # maximum number of results from a structure; deeper searches are exact

_MAX_MULTIPLE = 32  # of k, for sq8
_MAX_WORK = 0.5  # share of an exact scan; a structure that saves less is not worth its storage
_CANDIDATES_PER_RESULT = 4  # of ivf
_MAX_LISTS, _KMEANS_ROUNDS = 8192, 10
_MAX_KMEANS_VECTORS = 262_144  # and at most 64 per list
_BLOCK_ROWS = 65_536  # vectors converted to float32 at a time
_SEED = 1234


class AnnIndex:
    """An ANN structure over a segment's vectors."""

    def __init__(self, kind: str, index: Any, exact: ExactScan) -> None:
        """Combine the exact vectors with a FAISS index of a kind (untyped: its stubs lack most attributes)."""
        self._kind = kind
        self._index = index
        self._exact = exact

    def search(self, query: Vectors, parameter: int) -> RowHits:
        """Find the :data:`DEPTH` best candidates, with exact scores; ties are ordered by row.

        The depth is fixed so that a longer result always begins with the shorter one.
        """
        options: Any = None
        wanted = DEPTH * parameter + 1
        if self._kind == "ivf":
            options, wanted = faiss.SearchParametersIVF(), DEPTH * _CANDIDATES_PER_RESULT + 1
            options.nprobe = parameter
        while True:
            rows, ranks = search_index(self._index, query, min(wanted, self._exact.count), options)
            best, scores = self._exact.search_rows(query, rows, DEPTH)
            # Equal vectors have equal ranks: continue until no vector equal to the last result can be missing.
            if len(rows) < wanted or ranks[-1] < ranks[rows == best[-1]][0]:
                return best, scores
            wanted *= 2

    def parameters(self, queries: Vectors) -> Iterator[int]:
        """Yield the parameters to try, doubling, while their work, measured with queries, stays below the limit."""
        parameter = 1
        highest = self._index.nlist if self._kind == "ivf" else _MAX_MULTIPLE
        while parameter <= highest and self.work(queries, parameter) <= _MAX_WORK:
            yield parameter
            parameter *= 2

    def work(self, queries: Vectors, parameter: int) -> float:
        """Measure how much data a search reads as a share of an exact scan, averaged over ``queries [n, dim]``."""
        if self._kind == "sq8":
            return float(self._index.code_size / self._exact.code_size)
        _, lists = self._index.quantizer.search(queries, parameter)
        sizes = np.array([self._index.invlists.list_size(i) for i in range(self._index.nlist)])
        return float(sizes[lists].sum(axis=1).mean() + self._index.nlist) / self._exact.count


def build_ann(kind: str, exact: ExactScan, heartbeat: Callable[[], object] = lambda: None) -> Any:
    """Build the FAISS index of an ANN structure over stored vectors, with a ``heartbeat`` before each block."""
    dim, count, product = exact.dim, exact.count, faiss.METRIC_INNER_PRODUCT
    sample = _BLOCK_ROWS
    index: Any
    if kind == "ivf":
        lists = min(int(4 * math.sqrt(count)), _MAX_LISTS)
        quantizer, code = faiss.IndexFlatIP(dim), faiss.ScalarQuantizer.QT_8bit_uniform
        index = faiss.IndexIVFScalarQuantizer(quantizer, dim, lists, code, product, False)
        index.cp.spherical, index.cp.niter = True, _KMEANS_ROUNDS
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 64
        sample = min(64 * lists, _MAX_KMEANS_VECTORS)
    else:
        index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit_uniform, product)
    chosen = np.random.default_rng(_SEED).permutation(count)[:sample]
    index.train(exact.vectors(np.sort(chosen)))
    for rows in batches(np.arange(count), _BLOCK_ROWS):
        heartbeat()
        index.add(exact.vectors(rows))
    return index


def open_ann(path: Path, kind: str, exact: ExactScan) -> AnnIndex:
    """Map an ANN structure's file; raises RuntimeError for a damaged one, ValueError for one of other vectors."""
    flags = faiss.IO_FLAG_MMAP if kind == "ivf" else faiss.IO_FLAG_MMAP_IFC
    index: Any = faiss.read_index(str(path), flags)
    expected = faiss.IndexIVFScalarQuantizer if kind == "ivf" else faiss.IndexScalarQuantizer
    is_expected = isinstance(index, expected) and (index.ntotal, index.d) == (exact.count, exact.dim)
    if not is_expected:
        raise ValueError(f"it is not the {kind} structure of {exact.count} vectors")
    if kind == "ivf":
        # FAISS would start 32 threads per search to read ahead, which takes ten times as long as the search.
        faiss.downcast_InvertedLists(index.invlists).prefetch_nthread = 0  # type: ignore[attr-defined]
    return AnnIndex(kind, index, exact)


GATE_DEPTHS = (10, DEPTH)  # depths at which recall must reach the target

_MIN_QUERIES, _MAX_QUERIES = 100, 1000


@dataclass(frozen=True)
class GateResult:
    """What the recall gate decided."""

    structure: AnnStructure  # structure to search with, and its measurement; kind flat if none passed
    index: Any | None  # its FAISS index; None for kind flat
    queries: Vectors  # queries of the measurement, float32 [n, dim]


def choose_structure(
    exact: ExactScan, queries: Vectors, policy: AnnPolicy, heartbeat: Callable[[], object] = lambda: None
) -> GateResult | None:
    """Build ANN structures until one passes the recall gate.

    Args:
        queries: ``float32 [n, dim]``, vectors of captions that were not learned; at most a thousand of them are used.
        policy: Kinds to try, and the required recall.
        heartbeat: Called repeatedly; building takes minutes.

    Returns:
        None, without building anything, for a small segment or too few queries.
    """
    if exact.count <= max(policy.exact_rows, DEPTH) or len(queries) < _MIN_QUERIES:
        return None
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(queries))[:_MAX_QUERIES])
    queries = np.ascontiguousarray(queries[chosen], np.float32)
    exact_scores = np.stack([scores for _, scores in exact.search_many(queries, DEPTH)])
    last_scores = [exact_scores[:, depth - 1] for depth in GATE_DEPTHS]
    refused: dict[str, float] = {}

    def result(kind: str, parameter: int, recall: float, work: float, index: Any | None) -> GateResult:
        structure = AnnStructure(
            kind, parameter, recall, policy.target, DEPTH, len(queries), exact.count, work, refused
        )
        return GateResult(structure, index, queries)

    for kind in policy.kinds:
        index = build_ann(kind, exact, heartbeat)
        ann = AnnIndex(kind, index, exact)
        recall_at = lru_cache(partial(measure_recall, ann, queries, last_scores))
        recall = 0.0
        for parameter in ann.parameters(queries):
            heartbeat()
            recall = recall_at(parameter)
            if recall >= policy.target:  # a parameter between the previous one and this may reach it, too
                first = parameter // 2 + 1
                parameter = first + bisect_left(range(first, parameter), policy.target, key=recall_at)
                return result(
                    kind, parameter, recall_at(parameter), ann.work(queries, parameter), index=index
                )
        refused[kind] = recall
    return result("flat", 0, 1.0, 1.0, index=None)


def measure_recall(ann: AnnIndex, queries: Vectors, last_scores: Sequence[Scores], parameter: int) -> float:
    """Measure a structure's minimum recall over :data:`GATE_DEPTHS`; ``last_scores`` are exact, by depth and query.

    A result that ties with the last exact result counts as correct.
    """
    results = [ann.search(query, parameter)[1] for query in queries]
    return min(
        sum(int((scores[:depth] >= last).sum()) for scores, last in zip(results, lasts, strict=True))
        / (depth * len(queries))
        for depth, lasts in zip(GATE_DEPTHS, last_scores, strict=True)
    )
