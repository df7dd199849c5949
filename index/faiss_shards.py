"""Vectors in files of their own, which FAISS maps and scans in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from index.format import ShardEntry
from index.opened import OpenSegments
from index.segment import VECTORS, Segment, empty
from index.shard import Shard
from index.vector_store import Depth, Rows

__all__ = ["FaissShards"]

Ids = npt.NDArray[np.int64]


class FaissShards:
    """The :class:`~index.vector_store.VectorStore` that needs a disk alone: the rows are in the shard's folder."""

    def __init__(self, opened: OpenSegments) -> None:
        self._opened = opened

    def place(self, task: str, dim: int) -> str:
        return ""

    def stage(self, folder: Path, entry: ShardEntry, rows: Rows) -> None:
        flat = empty(entry.dim, entry.dtype)
        for chunk in rows():
            flat.add(chunk)
        # Through a file of ours: faiss closes its own without a word about bytes that a full disk did not take.
        with (folder / VECTORS).open("wb") as file:
            faiss.write_index(flat, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]

    def insert(self, entry: ShardEntry, ids: Ids, rows: Rows) -> None:
        """Nothing: the folder holds them."""

    def check(self, folder: Path, entry: ShardEntry, depth: Depth) -> None:
        if depth == "there":
            with self._opened.use(folder, entry):
                pass
        elif depth == "bytes":
            Segment.open(folder, entry)

    def open(self, parts: Sequence[tuple[Path, ShardEntry]], deleted: Ids) -> Shard:
        return Shard(parts, deleted, self._opened)

    def drop(self, shard: str, place: str) -> None:
        """Nothing: the folder goes, and the rows with it."""
