"""Reductions of the cells of the recall matrix: over bins of rows and columns, and over the queries of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["query_mean", "reduce_bins", "weighted_mean"]

_Values = npt.NDArray[np.float64]
_Starts = npt.NDArray[np.intp]


def reduce_bins(
    values: npt.NDArray[np.generic], row_starts: _Starts, column_starts: _Starts, operation: np.ufunc
) -> _Values:
    """Reduce each bin of a matrix ``[R, T]`` to one value.

    Args:
        values: The matrix.
        row_starts, column_starts: First positions of the bins, ascending.
        operation: Reduction; a matrix without values has zeros.
    """
    if not values.size:
        return np.zeros((len(row_starts), len(column_starts)))
    rows = operation.reduceat(values, row_starts, axis=0)
    return np.asarray(operation.reduceat(rows, column_starts, axis=1), float)


def weighted_mean(
    values: _Values, weights: npt.NDArray[np.int64], row_starts: _Starts, column_starts: _Starts
) -> _Values:
    """Mean of the measured cells of each bin, weighted by their queries; NaN without measured cells."""
    used = np.where(np.isnan(values), 0, weights)
    total = reduce_bins(np.nan_to_num(values) * used, row_starts, column_starts, np.add)
    count = reduce_bins(used, row_starts, column_starts, np.add)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def query_mean(values: _Values, queries: npt.NDArray[np.int64]) -> _Values:
    """Mean of the measured cells of each row ``[R, T]``, weighted by queries ``[R, T]``; NaN without measured cells."""
    every_row = np.arange(len(values), dtype=np.intp)
    return weighted_mean(values, queries, every_row, np.zeros(1, np.intp))[:, 0]
