"""Vectors in files of the segment folders, which FAISS maps and scans in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import faiss
import numpy as np

from index.arrays import Ids, Vectors
from index.files.manifest_format import AnnStructure, SegmentEntry
from index.files.segment_files import QUERIES, STRUCTURE, VECTORS
from index.scanning.ann_index import write_ann
from index.scanning.exact_scan import ExactScan, empty_flat_index
from index.scanning.recall_gate import choose_structure
from index.scanning.search_options import AnnPolicy
from index.scanning.segment import Segment
from index.scanning.segment_cache import SegmentCache
from index.shards.faiss_shard import FaissShard
from index.shards.vector_store import CheckLevel, VectorBatches, VectorStore

__all__ = ["FaissVectorStore"]


class FaissVectorStore(VectorStore):
    """Vector store on the local disk: its rows are files in the segment folders."""

    def __init__(self, cache: SegmentCache, policy: Callable[[], AnnPolicy]) -> None:
        """A store.

        Args:
            cache: Cache of the mapped segments.
            policy: Returns the current policy for ANN structures.
        """
        self._cache = cache
        self._policy = policy

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: VectorBatches,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> AnnStructure | None:
        flat = empty_flat_index(entry.dim)
        for batch in rows():
            flat.add(batch)

        def keep_alive() -> None:
            os.utime(folder)  # the garbage collector removes folders that were staged an hour ago
            heartbeat()

        result = None
        if queries is not None:
            result = choose_structure(ExactScan(flat), queries, self._policy(), keep_alive)
        # Through a Python file: FAISS closes its own files without reporting bytes that a full disk did not accept.
        with (folder / VECTORS).open("wb") as file:
            faiss.write_index(flat, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]
        if result is None:
            return None
        np.save(folder / QUERIES, result.queries, allow_pickle=False)
        if result.index is not None:
            with (folder / STRUCTURE).open("wb") as file:
                write_ann(result.structure.kind, result.index, file.write)
        return result.structure

    def check(self, folder: Path, entry: SegmentEntry, level: CheckLevel) -> None:
        """Check that the segment opens; its bytes were compared with their checksums before."""
        if level == "exists":
            with self._cache.use(folder, entry):
                pass
        elif level == "bytes":
            Segment.open(folder, entry, verify=False)

    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> FaissShard:
        return FaissShard(segments, deleted, self._cache)
