"""A shard that can be searched, wherever its rows are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardMissing
from index.files.manifest_format import SegmentEntry
from index.hits import Hits
from index.vector_ids import Ids, Vectors


class SearchableShard(ABC):
    """The shard of one task in one generation: all its segments, without deleted vectors.

    Every method raises :class:`~index.errors.ShardStoreError` if the rows were lost, or became unreachable, after the
    shard was opened.

    Attributes:
        segments: Entries of its segments, in order of publication.
        deleted: ``int64``, ascending; IDs that no search returns.
        is_remote: Whether a search waits for a server, instead of reading in this process.
    """

    is_remote = False

    def __init__(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> None:
        """Open a shard; its files are not read until they are needed.

        Args:
            segments: Folder and entry of each segment, in order of publication.
            deleted: Deleted IDs, ascending.
        """
        self.segments = tuple(entry for _, entry in segments)
        self.deleted = deleted
        self._folders = tuple(segments)

    @property
    def entry(self) -> SegmentEntry:
        """Entry of the first segment. Task, release, fingerprint and dimension are the same for all segments."""
        return self.segments[0]

    @property
    def state(self) -> str:
        """Identifies the contents: it changes with every append, deletion and compaction."""
        return "+".join(entry.id for entry in self.segments) + f"-{len(self.deleted)}"

    @property
    def count(self) -> int:
        """Number of vectors that are not deleted."""
        return sum(entry.count for entry in self.segments) - len(self.deleted)

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self.entry.dim

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
        """Return the result of :meth:`search_many` for one query ``float32 [dim]``."""
        return self.search_many(np.asarray(query)[None], k, exclude, include)[0]

    @abstractmethod
    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> list[Hits]:
        """Return the k nearest vectors to each query by inner product; equal scores are ordered by ID.

        Args:
            queries: ``float32 [n, dim]``, finite.
            k: Maximum number of results for each query.
            exclude: Further IDs to leave out; unknown IDs are ignored.
            include: The only IDs that may be returned, distinct; unknown ones are ignored. None: all.

        Raises:
            ValueError: The queries are not finite vectors of this dimension, or ``k`` is below 1.
        """

    def vectors(self, ids: Ids) -> Vectors:
        """Return the stored vectors ``float32 [len(ids), dim]``, as they were rounded.

        Raises:
            ShardMissing: An ID is unknown or deleted.
        """
        ids = np.asarray(ids, np.int64)
        vectors = np.empty((len(ids), self.dim), np.float32)
        missing = np.ones(len(ids), bool)
        for present, rows in self._fetch(ids):
            vectors[present] = rows
            missing &= ~present
        if len(self.deleted):
            missing |= np.isin(ids, self.deleted)
        if missing.any():
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[missing][0])}")
        return vectors

    @abstractmethod
    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        """Return the IDs of one segment, ascending, including deleted ones."""

    @abstractmethod
    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        """Return the batches of stored vectors, deleted ones included: which of the IDs a batch contains, and their
        vectors.
        """

    def _valid_queries(self, queries: Vectors, k: int) -> Vectors:
        """Return the queries as contiguous ``float32 [n, dim]``; raises ValueError as :meth:`search_many`."""
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        queries = np.ascontiguousarray(queries, np.float32)
        # The sum of squares is finite if all numbers are; it can also overflow for large numbers, which is rare.
        if (
            queries.ndim != 2
            or queries.shape[1] != self.dim
            or not (isfinite(np.vdot(queries, queries)) or np.isfinite(queries).all())
        ):
            raise ValueError(f"a query of task {self.entry.task} must be {self.dim} finite numbers")
        return queries
