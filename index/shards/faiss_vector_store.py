"""Vectors in files of their own, which FAISS maps and scans in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from index.files.manifest_format import AnnStructure, SegmentEntry
from index.scanning.ann_index import gated, write_candidates
from index.scanning.exact_scan import ExactScan, empty
from index.scanning.search_options import AnnPolicy
from index.scanning.segment import QUERIES, STRUCTURE, VECTORS, Segment
from index.scanning.segment_cache import SegmentCache
from index.shards.faiss_shard import FaissShard
from index.shards.vector_store import CheckLevel, Rows

__all__ = ["FaissVectorStore"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class FaissVectorStore:
    """The :class:`~index.shards.vector_store.VectorStore` that needs a disk alone: the rows are in the shard's folder."""

    def __init__(self, opened: SegmentCache, policy: Callable[[], AnnPolicy]) -> None:
        self._opened = opened
        self._policy = policy

    def place(self, task: str, dim: int) -> str:
        return ""

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: Rows,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> AnnStructure | None:
        flat = empty(entry.dim, entry.dtype)
        for chunk in rows():
            flat.add(chunk)

        def still_here() -> None:
            os.utime(folder)  # what has lain among the staged for an hour is swept away
            heartbeat()

        measured = None
        if queries is not None:
            measured = gated(ExactScan(flat), queries, self._policy(), still_here)
        # Through a file of ours: faiss closes its own without a word about bytes that a full disk did not take.
        with (folder / VECTORS).open("wb") as file:
            faiss.write_index(flat, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]
        if measured is None:
            return None
        np.save(folder / QUERIES, measured.queries, allow_pickle=False)
        if measured.index is not None:
            with (folder / STRUCTURE).open("wb") as file:
                write_candidates(measured.structure.kind, measured.index, file.write)
        return measured.structure

    def insert(self, entry: SegmentEntry, ids: Ids, rows: Rows) -> None:
        """Nothing: the folder holds them."""

    def check(self, folder: Path, entry: SegmentEntry, depth: CheckLevel) -> None:
        """Whether it opens. Its bytes are those of its files, which were compared already."""
        if depth == "there":
            with self._opened.use(folder, entry):
                pass
        elif depth == "bytes":
            Segment.open(folder, entry, verify=False)

    def open(self, parts: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> FaissShard:
        return FaissShard(parts, deleted, self._opened)

    def drop(self, shard: str, place: str) -> None:
        """Nothing: the folder goes, and the rows with it."""
