"""Vectors in files next to the IDs, which FAISS maps and scans in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import faiss
import numpy as np
import numpy.typing as npt

from index.arrays import Hits, Ids, Vectors, combine_hits, find_ids
from index.errors import ShardCorrupt
from index.files import segment_files
from index.files.manifest_format import AnnStructure, SegmentEntry
from index.scanning import exact_scan
from index.scanning.ann_index import AnnIndex, choose_structure, open_ann
from index.shards.vector_store import CheckLevel, SearchableShard, VectorBatches, VectorStore
from index.store_options import ANN_KINDS, AnnPolicy


class Segment:
    """One folder's frozen vectors, in half precision; scores are summed in single precision.

    A cosine between rounded unit vectors is off by less than 0.0005, and a scan reads half the bytes.

    Opened with :meth:`open`. The file is mapped: opening takes milliseconds, and pages are loaded as they are searched
    and shared between processes. Nothing is ever added (FAISS aborts the process on a write to a mapped index).
    """

    def __init__(
        self,
        entry: SegmentEntry,
        exact: exact_scan.ExactScan,
        ids: Ids,
        *,
        ann: AnnIndex | None = None,
        gpu: exact_scan.GpuScan | None = None,
        mapped: Mapping[str, os.stat_result],
    ) -> None:
        self.entry = entry
        self.ids = ids  # of each row, int64 [n], ascending
        self._exact = exact
        self._ann = ann
        self.gpu = gpu
        self._mapped = mapped

    @classmethod
    def open(cls, folder: Path, entry: SegmentEntry, *, verify: bool = True, gpu: bool = False) -> Segment:
        """Map the files in a segment's folder; raise ShardMissing, ShardCorrupt.

        Args:
            verify: Read every byte and compare checksums; otherwise compare only sizes and counts.
            gpu: Search a copy on a GPU, exactly, if it has memory for it; the file is mapped as well.
        """
        # First, because FAISS's readers do not check the files.
        segment_files.require_intact(folder, entry, verify=verify)
        name = segment_files.display_name(entry)
        try:
            description = json.loads((folder / segment_files.DESCRIPTION).read_text(encoding="utf-8"))
            flat = faiss.read_index(str(folder / segment_files.VECTORS), faiss.IO_FLAG_MMAP_IFC)
            if description != segment_files.describe(entry):
                raise ShardCorrupt(f"{name}: {segment_files.DESCRIPTION} contradicts the manifest")
            if not exact_scan.is_flat_index(flat) or (flat.ntotal, flat.d) != (entry.count, entry.dim):
                raise ShardCorrupt(f"{name}: {segment_files.VECTORS} contradicts the manifest")
            exact, ann, names = exact_scan.ExactScan(flat), None, [segment_files.VECTORS]
            scan = exact_scan.GpuScan(exact) if gpu else None
            is_on_cpu = scan is None or scan.failure
            if entry.structure is not None and entry.structure.kind in ANN_KINDS and is_on_cpu:
                ann = open_ann(folder / segment_files.STRUCTURE, entry.structure.kind, exact)
                names.append(segment_files.STRUCTURE)
            mapped = {str(folder / name): os.stat(folder / name) for name in names}
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            raise ShardCorrupt(f"{name}: it cannot be read ({error}); restore it from a backup") from error
        return cls(entry, exact, segment_files.load_ids(folder, entry), ann=ann, gpu=scan, mapped=mapped)

    def is_stale(self) -> bool:
        """Check whether a mapped file has changed its size, or was replaced by an intact one.

        A file that was removed, or replaced by something else, stays mapped as it was.
        """
        for path, mapped in self._mapped.items():
            try:
                current = os.stat(path)  # every scan does; Path.stat takes longer
            except OSError:
                continue
            is_same_file = (current.st_dev, current.st_ino) == (mapped.st_dev, mapped.st_ino)
            if is_same_file != (current.st_size == mapped.st_size):
                return True
        return False

    def live_rows(self, excluded: Ids, included: Ids | None = None) -> exact_scan.RowBitmap:
        """Mark the rows that a search may return: not the excluded IDs, and only the included ones; None means all."""
        live = np.full(self.entry.count, included is None)
        if included is not None:
            live[find_ids(self.ids, included)[1]] = True
        live[find_ids(self.ids, excluded)[1]] = False
        return np.packbits(live, bitorder="little")

    def search_many(self, queries: Vectors, k: int, live: exact_scan.RowBitmap | None = None) -> list[Hits]:
        """Find the k nearest vectors to each query by inner product; ties are ordered by ID.

        Exact, unless the entry names an ANN structure; scores are always exact. Searches only ``live`` rows, if given.
        """
        if self._ann is not None:
            results = [self._search_ann(self._ann, query, k, live) for query in queries]
        else:
            results = (self.gpu or self._exact).search_many(queries, k, live)
        return [Hits(self.ids[rows], scores) for rows, scores in results]

    def search_among(self, queries: Vectors, k: int, ids: Ids) -> list[Hits] | None:
        """Search among a few distinct IDs as :meth:`search_many` does; None if they are too many to read one by one."""
        if not self._exact.is_gather_faster(len(ids)):
            return None
        among = np.sort(find_ids(self.ids, ids)[1])
        results = [self._exact.search_rows(query, among, k) for query in queries]
        return [Hits(self.ids[rows], scores) for rows, scores in results]

    def fetch(self, ids: Ids) -> tuple[npt.NDArray[np.bool_], Vectors]:
        """Find which IDs are stored, and read their vectors ``float32 [n, dim]``, as they were rounded."""
        is_stored, rows = find_ids(self.ids, ids)
        return is_stored, self._exact.vectors(rows)

    def _search_ann(
        self, ann: AnnIndex, query: Vectors, k: int, live: exact_scan.RowBitmap | None
    ) -> exact_scan.RowHits:
        """Search the ANN structure down to the depth at which its recall was measured, and exactly beyond."""
        structure = self.entry.structure
        live_count = self.entry.count if live is None else exact_scan.count_rows(live)
        if structure is not None and k * self.entry.count <= structure.depth * live_count:
            rows, scores = ann.search(query, structure.parameter)
            # Excluded rows can correlate with the query, so a structure that skips them may miss the best of the rest.
            # The best of all rows are found with the measured recall, and the live ones among them are the best live
            # rows.
            is_live = slice(None) if live is None else exact_scan.contains_rows(live, rows)
            rows, scores = rows[is_live][:k], scores[is_live][:k]
            if len(rows) == k:
                return rows, scores
        return self._exact.search(query, k, live)


@dataclass
class _CacheEntry:
    """A segment, or None until it is open. ``opening`` lets one thread open it while others wait."""

    opening: Lock = field(default_factory=Lock)
    segment: Segment | None = None


class SegmentCache:
    """Opens segments on first use, and keeps them open while a generation names them.

    A dropped segment is closed with its last search. Segments are identified by content, whatever generation searches
    them.
    """

    def __init__(self, *, gpu: bool = False) -> None:
        """Create an empty cache. With ``gpu``, it searches copies of segments on a GPU."""
        self._gpu = gpu
        self._entries: dict[str, _CacheEntry] = {}

    def get(self, folder: Path, entry: SegmentEntry) -> Segment:
        """Get an open segment; raises as :meth:`Segment.open`.

        A file that was truncated or replaced since it was mapped is opened again: the kernel kills a process that reads
        a mapped file beyond its end.
        """
        cached = self._entries.get(entry.id) or self._entries.setdefault(entry.id, _CacheEntry())
        with cached.opening:
            segment = cached.segment
            if segment is None or segment.is_stale():
                segment = cached.segment = None  # a copy on a GPU is freed before the next one is made
                segment = cached.segment = Segment.open(folder, entry, verify=False, gpu=self._gpu)
        return segment

    def gpu_failures(self) -> dict[str, str]:
        """List why a CPU searches domains in place of the GPU, by task."""
        segments = [cached.segment for cached in list(self._entries.values())]
        return {s.entry.task: s.gpu.failure for s in segments if s and s.gpu and s.gpu.failure}

    def retain(self, identifiers: set[str]) -> None:
        """Drop all other segments, such as those that a new generation no longer names."""
        for identifier in set(self._entries) - identifiers:
            self._entries.pop(identifier, None)


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
        flat = exact_scan.empty_flat_index(entry.dim)
        for batch in rows():
            flat.add(batch)

        def keep_alive() -> None:
            os.utime(folder)  # the garbage collector removes folders that were staged an hour ago
            heartbeat()

        result = None
        if queries is not None:
            result = choose_structure(exact_scan.ExactScan(flat), queries, self._policy(), keep_alive)
        _write_index(flat, folder / segment_files.VECTORS)
        if result is None:
            return None
        np.save(folder / segment_files.QUERIES, result.queries, allow_pickle=False)
        if result.index is not None:
            _write_index(result.index, folder / segment_files.STRUCTURE)
        return result.structure

    def check(self, folder: Path, entry: SegmentEntry, level: CheckLevel) -> None:
        """Check that the segment opens; its checksums were compared before."""
        if level == "exists":
            self._cache.get(folder, entry)
        elif level == "bytes":
            Segment.open(folder, entry, verify=False)

    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> FaissShard:
        return FaissShard(segments, deleted, self._cache)


def _write_index(index: faiss.Index, path: Path) -> None:
    # Through a Python file, because FAISS's own do not report bytes that a full disk refused.
    with path.open("wb") as file:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]


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
        self._live_rows: dict[str, exact_scan.RowBitmap] = {}  # by segment ID, rows that are not deleted

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
                live: exact_scan.RowBitmap | None = segment.live_rows(left_out, include)
            else:
                live = self._undeleted_rows(segment) if len(self.deleted) else None
            parts.append(segment.search_many(queries, k, live))
        if len(parts) == 1:
            return parts[0]
        return [combine_hits(rankings, k) for rankings in zip(*parts, strict=True)]

    def _undeleted_rows(self, segment: Segment) -> exact_scan.RowBitmap:
        live = self._live_rows.get(segment.entry.id)
        if live is None:
            live = self._live_rows[segment.entry.id] = segment.live_rows(self.deleted)
        return live

    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        return self._cache.get(folder, entry).ids

    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        for folder, entry in self._folders:
            yield self._cache.get(folder, entry).fetch(ids)
