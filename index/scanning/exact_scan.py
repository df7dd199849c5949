"""Exact search: every stored vector is compared with the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import faiss
import numpy as np
import numpy.typing as npt

from index.scanning.search_threads import search_threads

__all__ = ["Alive", "ExactScan", "Found", "are_alive", "count_alive", "dtype_of", "empty"]

Alive = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]

_BLOCK_BYTES = 2 * 1024**2  # of single precision that exist at once: about what a core keeps near
_GATHERED = 16_384  # rows that are copied together at once
_SCATTERED = 4  # a row that is copied first takes as long as so many that are read in order
_MATMUL_FROM = 8  # queries; fewer are faster one after the other
_HELD = 8  # times as many rows as are wanted, until those that fell behind are dropped
_HALF = np.float64(2.0**-24)  # unit roundoff of single precision


class Found(NamedTuple):
    """Best first, equal scores by row: ``rows`` int64 and ``scores`` float32 (inner products), of equal length."""

    rows: Rows
    scores: Scores


class ExactScan:
    """Compares queries with all vectors of a flat faiss index, or with chosen ones.

    A score is always computed by the same routine, so equal vectors have equal scores wherever they lie and however
    they were found, and equal scores are ordered by row, also where a search cuts between them.
    """

    def __init__(self, flat: Any) -> None:
        self.flat: faiss.Index = flat
        self.count = int(flat.ntotal)
        self.dim = int(flat.d)
        self.code_size = int(flat.code_size)
        codes = faiss.rev_swig_ptr(flat.codes.data(), self.count * self.code_size)
        stored: Any = codes.view(np.float16 if dtype_of(flat) == "float16" else np.float32)
        self._stored: npt.NDArray[np.floating] = stored.reshape(self.count, self.dim)

    def search(self, query: Vectors, k: int, alive: Alive | None = None) -> Found:
        """The k best of all rows, or of those that are alive.

        Args:
            query: ``float32 [dim]``.
            alive: one bit for each row, lowest first.
        """
        # faiss leaves open which of equal scores survive the cut: look further until the cut is between unequal ones.
        wanted = k + 1
        while True:
            rows, scores = self._search(query, min(wanted, self.count), alive)
            if len(rows) <= k or len(rows) < wanted or scores[-1] < scores[k - 1]:
                return _best(rows, scores, k)
            wanted *= 2

    def search_many(self, queries: Vectors, k: int, alive: Alive | None = None) -> list[Found]:
        """As :meth:`search` for each query, but the vectors are read once for all of them.

        A matrix product adds up in another order than a scan. It is therefore asked which rows can be among the best,
        within the bound of its rounding, and those are scored again.

        Args:
            queries: ``float32 [n, dim]``.
        """
        few = alive is not None and count_alive(alive) * _SCATTERED < self.count
        if few or len(queries) < _MATMUL_FROM:
            return [self.search(query, k, alive) for query in queries]
        # |computed − true| ≤ dim · u · ‖x‖ · ‖q‖ in whatever order it is added up; two computed scores and two rows
        # make four of them. Rows have unit length, to within a thousandth.
        slack = 4.01 * self.dim * _HALF * np.linalg.norm(queries, axis=1)
        pool = _Pool(k, slack)
        across = np.ascontiguousarray(queries.T)
        for start, block in self._blocks():
            products = block @ across
            if alive is not None:
                products[~_bits(alive, start, len(block))] = -np.inf
            pool.add(start, products)
        owners, rows = pool.settle()
        ends = np.searchsorted(owners, np.arange(len(queries) + 1))
        return [
            self.search_rows(query, rows[first:last], k)
            for query, first, last in zip(queries, ends[:-1], ends[1:], strict=True)
        ]

    def search_rows(self, query: Vectors, rows: Rows, k: int) -> Found:
        """The k best of these rows, each of which is given once."""
        best = Found(np.empty(0, np.int64), np.empty(0, np.float32))
        for start in range(0, len(rows), _GATHERED):
            chosen = rows[start : start + _GATHERED]
            copied = empty(self.dim, dtype_of(self.flat))
            copied.add_sa_codes(np.ascontiguousarray(self._stored[chosen]).view(np.uint8))
            with search_threads():
                scores, found = copied.search(query[None], len(chosen))
            best = _best(
                np.concatenate([best.rows, chosen[found[0]]]), np.concatenate([best.scores, scores[0]]), k
            )
        return best

    def vectors(self, rows: Rows) -> Vectors:
        """``float32 [len(rows), dim]``, as they are stored."""
        return self._stored[rows].astype(np.float32)

    def _blocks(self) -> Iterator[tuple[int, Vectors]]:
        """First row and vectors of each block, in single precision, until the next one is asked for."""
        # numpy converts one half at a time, torch a vector of them. It takes a second to import, where nobody has yet.
        import torch

        step = max(_BLOCK_BYTES // (4 * self.dim), 1)
        single = torch.empty(min(step, self.count), self.dim)
        for start in range(0, self.count, step):
            stored = torch.from_numpy(self._stored[start : start + step])
            yield start, single[: len(stored)].copy_(stored).numpy()

    def _search(self, query: Vectors, wanted: int, alive: Alive | None) -> tuple[Rows, Scores]:
        """The best ``wanted`` rows that are alive, or all of them where there are fewer."""
        if alive is None:
            return self._scan(query, wanted)
        living = count_alive(alive)
        if living * _SCATTERED < self.count:
            found = self.search_rows(query, np.flatnonzero(_bits(alive, 0, self.count)), wanted)
            return found.rows, found.scores
        # Asking faiss about every row takes twice as long as the scan itself, so where few rows are dead it is asked
        # for some more and the dead ones are dropped; only if they crowd the top does it have to ask.
        more = 2 * wanted * self.count // living
        if more <= min(4 * wanted, self.count):
            rows, scores = self._scan(query, more)
            kept = are_alive(alive, rows)
            if kept.sum() >= wanted:
                return rows[kept][:wanted], scores[kept][:wanted]
        chosen = faiss.IDSelectorBitmap(
            self.count, faiss.swig_ptr(alive)
        )  # named, so that it outlives the search
        parameters = faiss.SearchParameters()
        parameters.sel = chosen
        return self._scan(query, wanted, parameters)

    def _scan(
        self, query: Vectors, k: int, parameters: faiss.SearchParameters | None = None
    ) -> tuple[Rows, Scores]:
        with search_threads():
            scores, found = self.flat.search(query[None], k, params=parameters)
        if found[0, -1] >= 0:
            return found[0], scores[0]
        present = found[0] >= 0  # faiss fills up with −1 where fewer than k are left
        return found[0][present], scores[0][present]


def empty(dim: int, dtype: str) -> faiss.Index:
    """An index of stored vectors, without any."""
    if dtype == "float32":
        return faiss.IndexFlatIP(dim)
    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)


def dtype_of(index: faiss.Index) -> str:
    """Of the vectors in an index; an empty text where it is not one of ours."""
    if isinstance(index, faiss.IndexFlatIP):
        return "float32"
    half = isinstance(index, faiss.IndexScalarQuantizer) and index.sq.qtype == faiss.ScalarQuantizer.QT_fp16
    return "float16" if half and index.metric_type == faiss.METRIC_INNER_PRODUCT else ""


def _best(rows: Rows, scores: Scores, k: int) -> Found:
    order = np.lexsort((rows, -scores))[:k]
    return Found(rows[order], scores[order])


def count_alive(alive: Alive) -> int:
    """How many rows may be found."""
    return int(np.bitwise_count(alive).sum())


def are_alive(alive: Alive, rows: Rows) -> npt.NDArray[np.bool_]:
    """Which of these rows may be found."""
    return np.asarray((alive[rows >> 3] >> (rows & 7)) & 1 == 1)


def _bits(alive: Alive, start: int, count: int) -> npt.NDArray[np.bool_]:
    """Whether each of ``count`` rows from ``start`` on is alive."""
    first = start // 8
    bits = np.unpackbits(alive[first : (start + count + 7) // 8], bitorder="little")
    return bits[start - 8 * first :][:count].astype(bool)


class _Pool:
    """Rows that may be among the k best of each query, while blocks of scores come in."""

    def __init__(self, k: int, slack: npt.NDArray[np.float64]) -> None:
        self._k = k
        self._slack = slack.astype(np.float32)
        # What scores less is not among them; −∞ never is.
        self._bound = np.full(len(slack), np.finfo(np.float32).min, np.float32)
        self._owners: list[Rows] = []
        self._rows: list[Rows] = []
        self._scores: list[Scores] = []
        self._held = 0
        self._most = _HELD * k * len(slack)

    def add(self, start: int, products: Scores) -> None:
        """Scores ``[m, n]`` of m rows from ``start`` on; −∞ for those that must not be found."""
        if not self._held and len(products) > self._k:
            place = len(products) - self._k
            kth = np.partition(products, place, axis=0)[place] - self._slack
            self._bound = np.maximum(self._bound, kth)
        met = np.flatnonzero(products >= self._bound)  # far faster than asking for lines and columns at once
        rows, owners = np.divmod(met, len(self._bound))
        self._owners.append(owners)
        self._rows.append(rows + start)
        self._scores.append(products.ravel()[met])
        self._held += len(met)
        if self._held > self._most:
            self.settle()

    def settle(self) -> tuple[Rows, Rows]:
        """Query and row of what still meets the bounds, which are tightened, by query."""
        owners, rows = np.concatenate(self._owners), np.concatenate(self._rows)
        scores = np.concatenate(self._scores)
        order = np.lexsort((-scores, owners))
        owners, rows, scores = owners[order], rows[order], scores[order]
        starts = np.searchsorted(owners, np.arange(len(self._bound) + 1))
        full = np.flatnonzero(np.diff(starts) >= self._k)
        kth = scores[starts[full] + self._k - 1]
        self._bound[full] = np.maximum(self._bound[full], kth - self._slack[full])
        kept = scores >= self._bound[owners]
        self._owners, self._rows, self._scores = [owners[kept]], [rows[kept]], [scores[kept]]
        self._held = int(kept.sum())
        # Where more than usual tie, it waits until there is as much again.
        self._most = max(self._most, 2 * self._held)
        return self._owners[0], self._rows[0]
