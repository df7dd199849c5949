"""Bins of neighboring releases and domains, in which a large recall matrix is shown."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.library import RecallBin
from service.library.recall.cell_means import weighted_mean
from service.library.recall.recall_cells import LearnedTask

__all__ = ["bin_means", "bin_starts", "describe_bins"]

_Starts = npt.NDArray[np.intp]


def bin_starts(length: int, bins: int) -> _Starts:
    """First positions of at most ``bins`` bins of equal size; the last bin may be smaller."""
    return np.arange(0, length, max(1, -(-length // bins)), dtype=np.intp)


def describe_bins(axis: Sequence[LearnedTask], window: slice, starts: _Starts) -> list[RecallBin]:
    """Describe the bins of a window.

    Args:
        axis: Tasks of all rows or of all columns.
        window: Positions of the shown ones.
        starts: First positions of the bins within the window.
    """
    edges = [*(window.start + int(start) for start in starts), window.stop]
    return [
        RecallBin(
            first=begin + 1,
            last=end,
            t=axis[begin].order,
            last_t=axis[end - 1].order,
            name=axis[begin].name,
            last_name=axis[end - 1].name if end - begin > 1 else None,
        )
        for begin, end in itertools.pairwise(edges)
    ]


def bin_means(values: npt.NDArray[np.float64], starts: _Starts) -> npt.NDArray[np.float64]:
    """Mean of the measured values ``[R]`` of each bin; NaN without measured values."""
    column = values.reshape(-1, 1)
    return weighted_mean(column, np.ones(column.shape, np.int64), starts, np.zeros(1, np.intp))[:, 0]
