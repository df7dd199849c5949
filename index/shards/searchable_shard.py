"""What the vectors of a task have in common wherever they are kept: segments, deletions, one ranking of all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardMissing
from index.files.manifest_format import SegmentEntry
from index.hits import Hits

__all__ = ["SearchableShard", "as_ids", "best", "ranked_hits"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class SearchableShard(ABC):
    """A :class:`~index.shards.vector_store.SearchableShard`, but for how one segment is read and searched.

    Attributes:
        parts: what the manifest says about its segments, the first one first.
        deleted: ids that are not found any more, ascending.
    """

    remote = False

    def __init__(self, parts: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> None:
        self.segments = tuple(entry for _, entry in parts)
        self.deleted = deleted
        self._folders = tuple(parts)

    @property
    def entry(self) -> SegmentEntry:
        return self.segments[0]

    @property
    def state(self) -> str:
        return "+".join(part.id for part in self.segments) + f"-{len(self.deleted)}"

    @property
    def count(self) -> int:
        return sum(entry.count for entry in self.segments) - len(self.deleted)

    @property
    def dim(self) -> int:
        return self.entry.dim

    @property
    def ids(self) -> Ids:
        every = [self._ids_of(folder, entry) for folder, entry in self._folders]
        if len(every) == 1 and not len(self.deleted):
            return every[0]
        return np.setdiff1d(np.concatenate(every), self.deleted)

    def search(
        self, query: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> Hits:
        return self.search_many(np.asarray(query)[None], k, exclude, among)[0]

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> list[Hits]:
        return [best(hits, k) for hits in self._found(queries, k, as_ids(exclude), among)]

    def vectors(self, ids: Ids) -> Vectors:
        ids = np.asarray(ids, np.int64)
        found = np.empty((len(ids), self.dim), np.float32)
        missing = np.ones(len(ids), bool)
        for here, vectors in self._stored(ids):
            found[here] = vectors
            missing &= ~here
        if len(self.deleted):
            missing |= np.isin(ids, self.deleted)
        if missing.any():
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[missing][0])}")
        return found

    @abstractmethod
    def _ids_of(self, folder: Path, entry: SegmentEntry) -> Ids:
        """Of one segment, ascending, with those that were deleted."""

    @abstractmethod
    def _found(self, queries: Vectors, k: int, exclude: Ids, among: Ids | None) -> Iterable[Sequence[Hits]]:
        """For each query what it finds in each part of the task: the k best, equal scores by id.

        Raises:
            ValueError: as :meth:`index.shards.vector_store.SearchableShard.search`.
        """

    @abstractmethod
    def _stored(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        """Piece by piece: which of the ids are in it, and their vectors. A deleted one may be among them."""


def as_ids(ids: Iterable[int] | Ids) -> Ids:
    """As an array, which ids that are given otherwise become."""
    return ids if isinstance(ids, np.ndarray) else np.fromiter(ids, np.int64)


def best(found: Sequence[Hits], k: int) -> Hits:
    """The k best of several rankings of different ids."""
    if len(found) == 1:
        return found[0]
    ids = np.concatenate([np.empty(0, np.int64), *(hits.ids for hits in found)])
    scores = np.concatenate([np.empty(0, np.float32), *(hits.scores for hits in found)])
    return ranked_hits(ids, scores, k)


def ranked_hits(ids: Ids, scores: Vectors, k: int) -> Hits:
    """The k best of these, equal scores by id."""
    order = np.lexsort((ids, -scores))[:k]
    return Hits(ids[order], scores[order])
