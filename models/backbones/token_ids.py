"""Texts as arrays of token IDs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int64]


def pad_texts(texts: Sequence[TokenIds], padding: int = 0) -> TokenIds:
    """Stack the token IDs of texts as ``[n, L]``, padded to the longest text."""
    ids = np.full((len(texts), max(map(len, texts), default=0)), padding, np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids
