"""Vectors in files next to the IDs, which FAISS maps and scans in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from index.arrays import Hits, Ids, Vectors, combine_hits
from index.files.manifest_format import AnnStructure, SegmentEntry
from index.files.segment_files import QUERIES, STRUCTURE, VECTORS
from index.scanning.ann_index import choose_structure, write_ann
from index.scanning.exact_scan import ExactScan, RowBitmap, empty_flat_index
from index.scanning.segment import Segment, SegmentCache
from index.shards.vector_store import CheckLevel, SearchableShard, VectorBatches, VectorStore
from index.store_options import AnnPolicy


class FaissVectorStore(VectorStore):
    """Vector store on the local disk: rows are files in the segment folders."""

    def __init__(self, cache: SegmentCache, policy: Callable[[], AnnPolicy]) -> None:
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
        # Through a Python file, because FAISS's own do not report bytes that a full disk refused.
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
        """Check that the segment opens; its checksums were compared before."""
        if level == "exists":
            self._cache.get(folder, entry)
        elif level == "bytes":
            Segment.open(folder, entry, verify=False)

    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> FaissShard:
        return FaissShard(segments, deleted, self._cache)


class FaissShard(SearchableShard):
    """Searches a shard's mapped files with FAISS.

    Files are opened on first use, and may be closed between searches. Every method therefore raises ShardMissing or
    ShardCorrupt if a file was lost after the shard was opened.
    """

    def __init__(
        self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids, cache: SegmentCache
    ) -> None:
        super().__init__(segments, deleted)
        self._cache = cache
        self._live_rows: dict[str, RowBitmap] = {}  # by segment ID, rows that are not deleted

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> list[Hits]:
        queries = self._valid_queries(queries, k)
        excluded = exclude if isinstance(exclude, np.ndarray) else np.fromiter(exclude, np.int64)
        left_out = np.concatenate([self.deleted, excluded]) if len(excluded) else self.deleted
        few = include
        if include is not None and len(left_out):
            few = include[np.isin(include, left_out, invert=True)]
        parts = []
        for folder, entry in self._folders:
            segment = self._cache.get(folder, entry)
            among = None if few is None else segment.search_among(queries, k, few)
            if among is not None:
                parts.append(among)
                continue
            if len(excluded) or include is not None:
                live: RowBitmap | None = segment.live_rows(left_out, include)
            else:
                live = self._undeleted_rows(segment) if len(self.deleted) else None
            parts.append(segment.search_many(queries, k, live))
        if len(parts) == 1:
            return parts[0]
        return [combine_hits(rankings, k) for rankings in zip(*parts, strict=True)]

    def _undeleted_rows(self, segment: Segment) -> RowBitmap:
        live = self._live_rows.get(segment.entry.id)
        if live is None:
            live = self._live_rows[segment.entry.id] = segment.live_rows(self.deleted)
        return live

    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        return self._cache.get(folder, entry).ids

    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        for folder, entry in self._folders:
            segment = self._cache.get(folder, entry)
            present = segment.rows(ids) >= 0
            yield present, segment.vectors(ids[present])
