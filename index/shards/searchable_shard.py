"""Search a shard, wherever its rows are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Vectors
from index.errors import ShardMissing
from index.files.manifest_format import SegmentEntry
from index.hits import Hits
from index.vector_ids import FIRST_MOMENT_ID


class SearchableShard(ABC):
    """One task's shard in one generation: all its segments, without deleted vectors.

    Every method raises :class:`~index.errors.ShardStoreError` if the rows were lost, or became unreachable, after the
    shard was opened.

    Attributes:
        segments: Entries of its segments, in order of publication.
        deleted: IDs that no search returns, ``int64``, ascending.
        is_remote: Whether a search waits for a server instead of reading in this process.
    """

    is_remote = False

    def __init__(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> None:
        """Open a shard; files are read only when needed."""
        self.segments = tuple(entry for _, entry in segments)
        self.deleted = deleted
        self._folders = tuple(segments)

    @property
    def entry(self) -> SegmentEntry:
        """Entry of the first segment. All segments share its task, release, fingerprint and dimension."""
        return self.segments[0]

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
        """Read stored vectors ``float32 [len(ids), dim]``, as they were rounded.

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
