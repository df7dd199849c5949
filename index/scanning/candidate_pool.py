"""Candidates of a batched exact search: rows that can be among the k best of each query."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.arrays import Rows, Scores

_CAPACITY = 8  # times k rows for each query, before rows below the bounds are dropped


class CandidatePool:
    """Collects rows that can be among the k best of each query, from approximate scores of blocks of rows."""

    def __init__(self, k: int, error_bound: npt.NDArray[np.float64]) -> None:
        """An empty pool.

        Args:
            k: Number of results of each query.
            error_bound: ``float64 [n]``, for each query the maximum error of the difference of two scores.
        """
        self._k = k
        self._error_bound = error_bound.astype(np.float32)
        # Minimum score of a candidate of each query; −∞ never passes.
        self._bounds = np.full(len(error_bound), np.finfo(np.float32).min, np.float32)
        self._owners: list[Rows] = []
        self._rows: list[Rows] = []
        self._scores: list[Scores] = []
        self._size = 0
        self._capacity = _CAPACITY * k * len(error_bound)

    def add(self, start: int, scores: Scores) -> None:
        """Add a block of rows.

        Args:
            start: First row of the block.
            scores: ``float32 [m, n]``, of m rows and n queries; −∞ for rows that must not be returned.
        """
        if not self._size and len(scores) > self._k:
            place = len(scores) - self._k
            kth_best = np.partition(scores, place, axis=0)[place] - self._error_bound
            self._bounds = np.maximum(self._bounds, kth_best)
        passing = np.flatnonzero(scores >= self._bounds)  # far faster than np.nonzero of two dimensions
        rows, owners = np.divmod(passing, len(self._bounds))
        self._owners.append(owners)
        self._rows.append(rows + start)
        self._scores.append(scores.ravel()[passing])
        self._size += len(passing)
        if self._size > self._capacity:
            self.settle()

    def settle(self) -> tuple[Rows, Rows]:
        """Raise the bounds to the k best scores so far, and drop rows below them.

        Returns:
            Query and row of each remaining candidate, ordered by query.
        """
        owners, rows = np.concatenate(self._owners), np.concatenate(self._rows)
        scores = np.concatenate(self._scores)
        order = np.lexsort((-scores, owners))
        owners, rows, scores = owners[order], rows[order], scores[order]
        starts = np.searchsorted(owners, np.arange(len(self._bounds) + 1))
        full = np.flatnonzero(np.diff(starts) >= self._k)
        kth_best = scores[starts[full] + self._k - 1]
        self._bounds[full] = np.maximum(self._bounds[full], kth_best - self._error_bound[full])
        kept = scores >= self._bounds[owners]
        self._owners, self._rows, self._scores = [owners[kept]], [rows[kept]], [scores[kept]]
        self._size = int(kept.sum())
        # Many equal scores may remain: wait until the pool has doubled.
        self._capacity = max(self._capacity, 2 * self._size)
        return self._owners[0], self._rows[0]
