"""Bitmaps of the rows that a search may return: one bit for each row of a segment, lowest first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from index.arrays import Rows

__all__ = ["RowBitmap", "contains_rows", "count_rows", "unpack_rows"]

RowBitmap = npt.NDArray[np.uint8]


def count_rows(bitmap: RowBitmap) -> int:
    """Number of rows in a bitmap."""
    return int(np.bitwise_count(bitmap).sum())


def contains_rows(bitmap: RowBitmap, rows: Rows) -> npt.NDArray[np.bool_]:
    """Whether each of these rows is in a bitmap."""
    return np.asarray((bitmap[rows >> 3] >> (rows & 7)) & 1 == 1)


def unpack_rows(bitmap: RowBitmap, start: int, count: int) -> npt.NDArray[np.bool_]:
    """Whether each of ``count`` rows from ``start`` on is in a bitmap."""
    first = start // 8
    bits = np.unpackbits(bitmap[first : (start + count + 7) // 8], bitorder="little")
    return bits[start - 8 * first :][:count].astype(bool)
