"""Array types of the index, and iteration over arrays in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]  # ids of vectors
Rows = npt.NDArray[np.int64]  # row numbers within a segment
Scores = npt.NDArray[np.float32]  # inner products
Vectors = npt.NDArray[np.float32]  # one vector [dim], or many [n, dim]

Number = TypeVar("Number", bound=np.generic)


def batches(array: npt.NDArray[Number], size: int) -> Iterator[npt.NDArray[Number]]:
    """Consecutive slices of at most ``size`` entries of the first axis; views, in order."""
    for start in range(0, len(array), size):
        yield array[start : start + size]
