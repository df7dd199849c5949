"""The interface between the manifest and vector stores.

:class:`~index.shard_store.ShardStore` owns the manifest, its generations, releases, IDs and deletions: a few files, the
source of truth. A :class:`VectorStore` stores rows and scans them:

- :class:`~index.shards.faiss_vector_store.FaissVectorStore`: files next to the IDs;
- :class:`~index.milvus.milvus_vector_store.MilvusVectorStore`: a server;
- :class:`EmptyVectorStore`: for tasks without vectors.

A segment is written in three steps, and becomes visible with the last one::

    stage     writes files into the segment folder, which determine its content ID
    insert    stores the rows under that ID; incomplete rows are invisible, and may be written again or dropped
    publish   replaces the manifest (ShardStore)

Deletions are part of the manifest too: deleted IDs are passed when a shard is opened, and stay visible in older
generations. So no store ever changes a row, and no search mixes two generations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from index.arrays import FIRST_MOMENT_ID, NO_HITS, Hits, Ids, Vectors
from index.errors import ShardMissing
from index.files.manifest_format import AnnStructure, SegmentEntry

# Yields a segment's vectors in batches ``float32 [≤ 16,384, dim]``; may be called repeatedly.
VectorBatches = Callable[[], Iterable[Vectors]]
CheckLevel = Literal["exists", "rows", "bytes"]


class SearchableShard(ABC):
    """One task's shard in one generation: all its segments, without deleted vectors.

    Every method raises :class:`~index.errors.ShardStoreError` if the rows were lost, or became unreachable, after the
    shard was opened.
    """

    is_remote = False  # whether a search waits for a server instead of reading in this process

    def __init__(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> None:
        """Open a shard; files are read only when needed."""
        self.segments = tuple(entry for _, entry in segments)
        self.entry = self.segments[0]  # all have its task, release, fingerprint and dimension
        self.dim = self.entry.dim
        self.deleted = deleted  # IDs that no search returns, int64, ascending
        self.count = sum(entry.count for entry in self.segments) - len(deleted)
        self._folders = tuple(segments)

    @property
    def state(self) -> str:
        """Identifier of the contents, which changes with every append, deletion and compaction."""
        return "+".join(entry.id for entry in self.segments) + f"-{len(self.deleted)}"

    @cached_property
    def bytes(self) -> int:
        """Total size of its segments' files."""
        return sum(entry.bytes for entry in self.segments)

    @cached_property
    def has_moments(self) -> bool:
        """Whether it may contain moments, from the manifest entries alone."""
        return any(entry.last_id >= FIRST_MOMENT_ID for entry in self.segments)

    @property
    def ids(self) -> Ids:
        """IDs of the vectors that are not deleted, ``int64 [count]``, ascending."""
        segments = [self._segment_ids(folder, entry) for folder, entry in self._folders]
        if len(segments) == 1 and not len(self.deleted):
            return segments[0]
        return np.setdiff1d(np.concatenate(segments), self.deleted)

    def search(
        self, query: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> Hits:
        """Search with one query ``float32 [dim]``; see :meth:`search_many`."""
        return self.search_many(np.asarray(query)[None], k, exclude, include)[0]

    @abstractmethod
    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> list[Hits]:
        """Find the k nearest vectors to each query by inner product; ties are ordered by ID.

        Args:
            queries: ``float32 [n, dim]``, finite.
            k: Maximum number of results per query.
            exclude: Other IDs to leave out besides deleted ones; unknown IDs are ignored.
            include: The only IDs that may be returned, distinct; unknown ones are ignored. None means all.

        Raises:
            ValueError: The queries are not finite vectors of this dimension, or ``k`` is below 1.
        """

    def vectors(self, ids: Ids) -> Vectors:
        """Read stored vectors ``float32 [len(ids), dim]``, as they were rounded; raises ShardMissing."""
        ids = np.asarray(ids, np.int64)
        vectors = np.empty((len(ids), self.dim), np.float32)
        missing = np.ones(len(ids), bool)
        for present, rows in self._fetch(ids):
            if present.all() and not len(self.deleted):
                return rows
            vectors[present] = rows
            missing &= ~present
        if len(self.deleted):
            missing |= np.isin(ids, self.deleted)
        if missing.any():
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[missing][0])}")
        return vectors

    @abstractmethod
    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        """Read one segment's IDs, ascending, including deleted ones."""

    @abstractmethod
    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        """Yield stored vectors in batches, deleted ones included: which IDs are in a batch, and their vectors."""

    def _valid_queries(self, queries: Vectors, k: int) -> Vectors:
        """Check queries and make them contiguous ``float32 [n, dim]``; raises ValueError as :meth:`search_many`."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        queries = np.ascontiguousarray(queries, np.float32)
        # The sum of squares is finite if all numbers are, except that it may overflow for large ones, which are rare.
        if (
            queries.ndim != 2
            or queries.shape[1] != self.dim
            or not (isfinite(np.vdot(queries, queries)) or np.isfinite(queries).all())
        ):
            raise ValueError(f"a query of task {self.entry.task} must be {self.dim} finite numbers")
        return queries


class VectorStore(ABC):
    """Stores the rows of segments, and scans them. Every method is idempotent.

    Every method raises StoreUnavailable if a server does not respond, or refuses. The default methods suit a store
    whose rows, if any, are files in the segment folders.
    """

    def place(self, task: str, dim: int) -> str:
        """Decide where a task's rows go, see :attr:`SegmentEntry.place`. Nothing is created."""
        return ""

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: VectorBatches,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> AnnStructure | None:
        """Write the rows, or a digest of them, into a segment folder before it is sealed.

        The entry has no ID and files yet. Returns the ANN structure in the folder, measured with queries (None: without
        one), and calls ``heartbeat`` while it is built (:mod:`index.scanning.ann_index`).
        """
        return None

    def insert(self, entry: SegmentEntry, ids: Ids, rows: VectorBatches) -> None:
        """Store a sealed segment's rows durably, in the order of their IDs ``int64 [count]``, ascending.

        If all are stored already, nothing is written. Raises ShardCorrupt if some did not arrive.
        """
        return

    def check(self, folder: Path, entry: SegmentEntry, level: CheckLevel) -> None:
        """Compare the stored rows with the entry; raises ShardMissing or ShardCorrupt.

        The folder's checksums were compared before.

        Args:
            level: ``exists``: the segment can be opened; ``rows``: every row is stored; ``bytes``: every row has the
                content that was written.
        """
        return

    @abstractmethod
    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        """Open the shard of these segments (folder and entry), without the deleted IDs; rows are read when needed."""

    def drop(self, segment_id: str, place: str) -> None:
        """Remove the rows of a segment that no generation names, whether all, some or none are stored.

        The task's place is removed with its last segment.
        """
        return


class EmptyVectorStore(VectorStore):
    """Vector store for segments without vectors; it stores nothing.

    A task has such a segment after all its vectors were deleted and its shard was compacted. The manifest still names
    the task, its release and its encoder, so the task stays published, pinned and counted. The segment's folder has a
    description and an empty list of IDs, wherever its vectors were before.
    """

    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        return _EmptyShard(segments, deleted)


class _EmptyShard(SearchableShard):
    """The shard of a task without vectors."""

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> list[Hits]:
        return [NO_HITS] * len(self._valid_queries(queries, k))

    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        return np.empty(0, np.int64)

    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        return iter(())
