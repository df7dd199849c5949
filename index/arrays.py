"""The array types of the project, and the only way to divide a sequence into parts of a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]  # vector IDs
Rows = npt.NDArray[np.int64]  # row numbers within a segment
TokenIds = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]  # inner products
Vectors = npt.NDArray[np.float32]  # one vector [dim], or many [n, dim]
Floats = npt.NDArray[np.floating]
Frames = npt.NDArray[np.uint8]  # RGB

Number = TypeVar("Number", bound=np.generic)
Item = TypeVar("Item")


@overload
def batches(items: npt.NDArray[Number], size: int) -> Iterator[npt.NDArray[Number]]: ...
@overload
def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]: ...
def batches(items: Any, size: int) -> Iterator[Any]:
    """Yield consecutive parts of at most ``size`` items; those of an array are views along its first axis."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
