"""Search options that settings name. This module imports neither faiss nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EXACT_ROWS = 250_000
ANN_KINDS = ("ivf", "hnsw", "sq8")

Device = Literal["cpu", "cuda", "auto"]


@dataclass(frozen=True)
class AnnPolicy:
    """Which segments get an ANN structure (approximate nearest neighbors).

    Attributes:
        exact_rows: Maximum number of rows in a segment that is always scanned exactly.
        target: Minimum recall of a structure, at each depth that the recall gate measures.
        kinds: Kinds of structures to try, in this order.
    """

    exact_rows: int = EXACT_ROWS
    target: float = 0.99
    kinds: tuple[str, ...] = ANN_KINDS
