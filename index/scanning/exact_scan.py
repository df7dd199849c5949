"""Exact search, which compares every stored vector with the query, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from index.arrays import Rows, Scores, Vectors, batches
from index.errors import DeviceMissing
from index.store_options import Device

_ROWS = 256  # converted at a time, so that all steps find them in the cache
_MANTISSA_BITS = 23 - 10  # additional bits of single precision
_KEPT_BITS = np.uint32(0x8FFFE000)  # sign, five bits of exponent, ten of mantissa
_BIAS = np.float32(2.0 ** (127 - 15))  # difference of the exponents' biases, as a factor


def widen_half_precision(stored: npt.NDArray[np.float16], out: npt.NDArray[np.float32]) -> None:
    """Convert finite half-precision numbers ``[n, dim]`` exactly to single precision, into ``out``.

    numpy converts half precision one number at a time, which takes six times as long as these operations on whole
    vector registers.
    """
    words, halves = out.view(np.uint32), stored.view(np.int16)
    for start in range(0, len(stored), _ROWS):
        rows = slice(start, start + _ROWS)
        word = words[rows]
        word[...] = halves[rows]  # extends the sign bit
        word <<= _MANTISSA_BITS
        word &= _KEPT_BITS
        out[rows] *= _BIAS  # subnormal numbers become normal


# Ranked rows of one query, best first, ties by row, and their inner products with it.
RowHits = tuple[Rows, Scores]

_is_single_threaded = False


def use_one_thread_per_search() -> None:
    """Let concurrent requests run side by side, instead of spreading each search over all cores. For servers."""
    global _is_single_threaded
    _is_single_threaded = True


def search_index(
    index: faiss.Index, query: Vectors, limit: int, parameters: faiss.SearchParameters | None = None
) -> RowHits:
    """Find the best ``limit`` rows of a FAISS index for a query ``float32 [dim]``, or all if there are fewer.

    OpenMP counts threads per calling thread, so a limit set once at the start of the server would not reach the threads
    that serve requests. The limit is lifted afterwards because torch may share the OpenMP runtime.
    """
    threads = faiss.omp_get_max_threads() if _is_single_threaded else 0
    if threads:
        faiss.omp_set_num_threads(1)
    try:
        scores, rows = index.search(query[None], limit, params=parameters)
    finally:
        if threads:
            faiss.omp_set_num_threads(threads)
    if rows[0, -1] >= 0:
        return rows[0], scores[0]
    present = rows[0] >= 0  # FAISS pads short results with −1
    return rows[0][present], scores[0][present]


_CAPACITY = 8  # times k rows per query, before rows below the bounds are dropped


class CandidatePool:
    """Collects rows that may be among each query's k best, from approximate scores of blocks of rows."""

    def __init__(self, k: int, error_bound: npt.NDArray[np.float64]) -> None:
        """Create an empty pool; ``error_bound [n]`` is the maximum error in the difference of two scores, per query."""
        self._k = k
        self._error_bound = error_bound.astype(np.float32)
        # Minimum score of each query's candidates; −∞ never passes.
        self._bounds = np.full(len(error_bound), np.finfo(np.float32).min, np.float32)
        self._owners: list[Rows] = []
        self._rows: list[Rows] = []
        self._scores: list[Scores] = []
        self._size = 0
        self._capacity = _CAPACITY * k * len(error_bound)

    def add(self, start: int, scores: Scores) -> None:
        """Add a block of rows by their scores for all queries; −∞ for rows that must not be returned."""
        if not self._size and len(scores) > self._k:
            rank = len(scores) - self._k
            kth_best = np.partition(scores, rank, axis=0)[rank] - self._error_bound
            self._bounds = np.maximum(self._bounds, kth_best)
        passing = np.flatnonzero(scores >= self._bounds)  # far faster than np.nonzero over two dimensions
        rows, owners = np.divmod(passing, len(self._bounds))
        self._owners.append(owners)
        self._rows.append(rows + start)
        self._scores.append(scores.ravel()[passing])
        self._size += len(passing)
        if self._size > self._capacity:
            self.settle()

    def settle(self) -> tuple[Rows, Rows]:
        """Raise the bounds to the k best scores so far, and drop the rows below.

        Returns query and row of each remaining candidate, ordered by query.
        """
        owners, rows = np.concatenate(self._owners), np.concatenate(self._rows)
        scores = np.concatenate(self._scores)
        order = np.lexsort((-scores, owners))
        owners, rows, scores = owners[order], rows[order], scores[order]
        starts = np.searchsorted(owners, np.arange(len(self._bounds) + 1))
        full = np.flatnonzero(np.diff(starts) >= self._k)
        kth_best = scores[starts[full] + self._k - 1]
        self._bounds[full] = np.maximum(self._bounds[full], kth_best - self._error_bound[full])
        remaining = scores >= self._bounds[owners]
        self._owners, self._rows, self._scores = [owners[remaining]], [rows[remaining]], [scores[remaining]]
        self._size = int(remaining.sum())
        # Many ties may remain: do not settle again before the pool has doubled.
        self._capacity = max(self._capacity, 2 * self._size)
        return self._owners[0], self._rows[0]


BLOCK_BYTES = 2 * 1024**2  # float32 bytes converted at a time: about a core's cache
_GATHERED_ROWS = 16_384  # rows copied at a time
_FEW_ROWS = 16  # compared one by one faster than copied
_GATHER_COST = 16  # gathering a row takes as long as reading this many rows in order
_SMALL = 2048  # rows that take less time to scan than to mark in a bitmap
_MATMUL_QUERIES = 8  # from this many queries on, a matrix product is faster than single scans
_FLOAT32_ROUNDOFF = np.float64(2.0**-24)


class ExactScan:
    """Compares queries with all vectors in a flat FAISS index, or with selected ones.

    One routine computes all scores, so equal vectors have equal scores wherever they are stored and however they were
    found. Ties are ordered by row, even where the result ends between them.
    """

    def __init__(self, flat: Any) -> None:
        self.flat: faiss.Index = flat
        self.count = int(flat.ntotal)
        self.dim = int(flat.d)
        self.code_size = int(flat.code_size)
        codes = faiss.rev_swig_ptr(flat.codes.data(), self.count * self.code_size)
        self._stored: npt.NDArray[np.float16] = codes.view(np.float16).reshape(self.count, self.dim)

    def search(self, query: Vectors, k: int, live: RowBitmap | None = None) -> RowHits:
        """Find the k best rows for one query, among those that are ``live``, or all."""
        if live is not None:
            live_count = count_rows(live)
            if self.is_gather_faster(live_count):
                return self.search_rows(query, np.flatnonzero(unpack_rows(live, 0, self.count)), k)
            return _best_rows(lambda limit: self._scan_live(query, limit, live, live_count), live_count, k)
        return _best_rows(lambda limit: search_index(self.flat, query, limit), self.count, k)

    def search_many(self, queries: Vectors, k: int, live: RowBitmap | None = None) -> list[RowHits]:
        """Search as :meth:`search` does for each query ``float32 [n, dim]``, but read the vectors only once.

        A matrix product adds up in another order than a scan. It therefore only selects the rows that may be among the
        best, within its rounding error; the scan routine then computes their scores.
        """
        sparse = live is not None and self.is_gather_faster(count_rows(live))
        if sparse or len(queries) < _MATMUL_QUERIES:
            hits = []  # filled in a loop, since a comprehension adds a stack frame to every scan
            for query in queries:
                hits.append(self.search(query, k, live))
            return hits
        owners, rows = self._select_candidates(queries, k, live)
        ends = np.searchsorted(owners, np.arange(len(queries) + 1))
        return [
            self.search_rows(query, rows[first:last], k)
            for query, first, last in zip(queries, ends[:-1], ends[1:], strict=True)
        ]

    def is_gather_faster(self, count: int) -> bool:
        """Decide whether reading this many rows one by one is faster than a scan."""
        return count * _GATHER_COST < max(self.count, _SMALL)

    def search_rows(self, query: Vectors, rows: Rows, k: int) -> RowHits:
        """Find the k best of these distinct rows for one query ``float32 [dim]``."""
        if len(rows) <= _FEW_ROWS:
            computer = self.flat.get_FlatCodesDistanceComputer()  # type: ignore[attr-defined]
            query = np.ascontiguousarray(query, np.float32)
            computer.set_query(faiss.swig_ptr(query))
            return _top_k(rows, np.array([computer(row) for row in rows.tolist()], np.float32), k)
        parts = [self._search_copy(query, batch, k) for batch in batches(rows, _GATHERED_ROWS)]
        if len(parts) == 1:
            return parts[0]
        parts.append((np.empty(0, np.int64), np.empty(0, np.float32)))
        return _top_k(
            np.concatenate([rows for rows, _ in parts]), np.concatenate([scores for _, scores in parts]), k
        )

    def vectors(self, rows: Rows) -> Vectors:
        """Read the vectors in these rows, ``float32 [len(rows), dim]``."""
        return self._stored[rows].astype(np.float32)

    def _select_candidates(self, queries: Vectors, k: int, live: RowBitmap | None) -> tuple[Rows, Rows]:
        """Select every row that may be among a query's k best: query and row of each, ordered by query."""
        # |computed − true| ≤ dim · u · ‖x‖ · ‖q‖ in any order of summation. A comparison involves two scores, each
        # computed in two ways, so four errors. Rows have unit length to within a thousandth.
        error_bound = 4.01 * self.dim * _FLOAT32_ROUNDOFF * np.linalg.norm(queries, axis=1)
        pool = CandidatePool(k, error_bound)
        transposed = np.ascontiguousarray(queries.T)
        size = max(BLOCK_BYTES // (4 * self.dim), 1)
        buffer = np.empty((min(size, self.count), self.dim), np.float32)
        start = 0
        for stored in batches(self._stored, size):
            block = buffer[: len(stored)]
            widen_half_precision(stored, block)
            products = block @ transposed
            if live is not None:
                products[~unpack_rows(live, start, len(block))] = -np.inf
            pool.add(start, products)
            start += len(block)
        return pool.settle()

    def _scan_live(self, query: Vectors, limit: int, live: RowBitmap, live_count: int) -> RowHits:
        """Find the best ``limit`` live rows, or all of them if there are fewer."""
        # Checking every row against a bitmap takes FAISS twice as long as the scan itself. If few rows are excluded, it
        # is faster to ask for more results; the bitmap is only needed if excluded rows fill the top.
        extended = 2 * limit * self.count // live_count
        if extended <= min(4 * limit, self.count):
            rows, scores = search_index(self.flat, query, extended)
            is_live = contains_rows(live, rows)
            if is_live.sum() >= limit:
                return rows[is_live][:limit], scores[is_live][:limit]
        selector = faiss.IDSelectorBitmap(self.count, faiss.swig_ptr(live))  # must outlive the search
        parameters = faiss.SearchParameters()
        parameters.sel = selector
        return search_index(self.flat, query, limit, parameters)

    def _search_copy(self, query: Vectors, rows: Rows, k: int) -> RowHits:
        """Search a few rows as :meth:`search_rows` does."""
        copied = empty_flat_index(self.dim)
        copied.add_sa_codes(self._stored[rows].view(np.uint8))

        def scan(limit: int) -> RowHits:
            best, scores = search_index(copied, query, limit)
            return rows[best], scores

        return _best_rows(scan, len(rows), k)


def empty_flat_index(dim: int) -> faiss.Index:
    """Create an empty flat FAISS index in half precision, for inner products."""
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)


def is_flat_index(index: faiss.Index) -> bool:
    """Check whether an index is like those of :func:`empty_flat_index`, with vectors."""
    half = isinstance(index, faiss.IndexScalarQuantizer) and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16
    return half and index.metric_type == faiss.METRIC_INNER_PRODUCT


def _best_rows(scan: Callable[[int], RowHits], count: int, k: int) -> RowHits:
    """Find the k best of ``count`` rows; ``scan`` returns as many of the best rows as it is asked for."""
    # FAISS does not specify which of several ties it returns: continue until the result ends between different scores.
    wanted = k + 1
    while True:
        rows, scores = scan(max(1, min(wanted, count)))
        if len(rows) <= k or len(rows) < wanted or scores[-1] < scores[k - 1]:
            return _top_k(rows, scores, k)
        wanted *= 2


def _top_k(rows: Rows, scores: Scores, k: int) -> RowHits:
    if (scores[1:] < scores[:-1]).all():  # as from FAISS, unless there are ties
        return rows[:k], scores[:k]
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]


RowBitmap = npt.NDArray[np.uint8]


def count_rows(bitmap: RowBitmap) -> int:
    """Count the rows in a bitmap."""
    return int(np.bitwise_count(bitmap).sum())


def contains_rows(bitmap: RowBitmap, rows: Rows) -> npt.NDArray[np.bool_]:
    """Check which of these rows are in a bitmap."""
    return np.asarray((bitmap[rows >> 3] >> (rows & 7)) & 1 == 1)


def unpack_rows(bitmap: RowBitmap, start: int, count: int) -> npt.NDArray[np.bool_]:
    """Check which of the ``count`` rows from ``start`` on are in a bitmap."""
    first = start // 8
    bits = np.unpackbits(bitmap[first : (start + count + 7) // 8], bitorder="little")
    return bits[start - 8 * first :][:count].astype(bool)


_SPARE_RESULTS = 32  # beyond twice the wanted results; the GPU also rounds the query to half precision
_MAX_RESULTS = 2048  # in one search on a GPU
_COPIED_ROWS = 65_536  # vectors copied at a time
_SCRATCH_BYTES = 256 * 1024**2  # for products; FAISS reserves six times as much by default


def is_gpu_used(device: Device) -> bool:
    """Decide whether searches run on a GPU; raises DeviceMissing if one is required and cannot be used."""
    if device == "cpu":
        return False
    built = hasattr(faiss, "StandardGpuResources")
    available = built and faiss.get_num_gpus() > 0
    if device == "cuda" and not available:
        reason = "faiss finds no GPU" if built else "this faiss was built without GPU support"
        raise DeviceMissing(
            f"CINESTRATA_INDEX_DEVICE=cuda, but {reason}: install cinestrata[gpu] on a machine with an NVIDIA GPU, "
            "or set CINESTRATA_INDEX_DEVICE=cpu"
        )
    return available


_gpu_lock = Lock()  # FAISS lets one thread at a time use a GPU's resources


@cache
def gpu_resources() -> Any:
    """Reserve this process's scratch memory on the GPU; all its segments share it."""
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(_SCRATCH_BYTES)
    return resources


class GpuScan:
    """Selects the best rows on a GPU and scores them from the mapped file, so scores and ties are the exact ones.

    Attributes:
        failure: Why the CPU searches instead, for example a lack of memory on the GPU; None while the GPU does.
    """

    def __init__(self, exact: ExactScan) -> None:
        self._exact = exact
        self.failure: str | None = None
        try:
            with _gpu_lock:
                config = faiss.GpuIndexFlatConfig()
                config.useFloat16 = True
                self._index: Any = faiss.GpuIndexFlatIP(gpu_resources(), exact.dim, config)
                for rows in batches(np.arange(exact.count), _COPIED_ROWS):
                    self._index.add(exact.vectors(rows))
        except RuntimeError as error:
            self._leave_gpu(error)

    def search_many(self, queries: Vectors, k: int, live: RowBitmap | None = None) -> list[RowHits]:
        """Search as :meth:`ExactScan.search_many` does.

        The CPU searches where the GPU cannot decide: for deep results, where deletions and filters leave too few
        of its rows, where ties may continue beyond its last row, and once the GPU has failed.
        """
        limit, index = 2 * k + _SPARE_RESULTS, self._index
        if index is None or limit > min(_MAX_RESULTS, self._exact.count):
            return self._exact.search_many(queries, k, live)
        try:
            with _gpu_lock:
                _, candidates = index.search(queries, limit)
        except RuntimeError as error:
            self._leave_gpu(error)
            return self._exact.search_many(queries, k, live)
        return [self._rescore(query, rows, k, live) for query, rows in zip(queries, candidates, strict=True)]

    def _leave_gpu(self, error: RuntimeError) -> None:
        """Free the copy on the GPU, and record the error: FAISS raises this type for every fault of the device."""
        is_full = "out of memory" in str(error)
        self.failure = "its memory is full" if is_full else str(error).strip().splitlines()[-1]
        self._index = None

    def _rescore(self, query: Vectors, rows: Rows, k: int, live: RowBitmap | None) -> RowHits:
        _, (last_score,) = self._exact.search_rows(query, rows[-1:], 1)
        if live is not None:
            rows = rows[contains_rows(live, rows)]
        rows, scores = self._exact.search_rows(query, rows, k)
        # Rounding a unit vector to half precision changes a score by at most 2⁻¹¹ times the query's length.
        margin = np.linalg.norm(query) * 2.0**-10
        if len(rows) < k or scores[-1] - last_score <= margin:
            return self._exact.search(query, k, live)
        return rows, scores
