"""What a task has in the store, as its readers see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardMissing
from index.format import ShardEntry
from index.opened import OpenSegments
from index.scan import Alive
from index.segment import Hits, Segment

__all__ = ["Shard"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Shard:
    """The vectors of one task: its segments, without what was deleted.

    A file is opened when something is asked of it, and may be closed in between. Whatever is asked therefore raises
    ShardMissing or ShardCorrupt when the file was lost since the snapshot was made.

    Attributes:
        parts: what the manifest says about its segments, the first one first.
        deleted: ids that are not found any more, ascending.
    """

    remote = False

    def __init__(self, parts: Sequence[tuple[Path, ShardEntry]], deleted: Ids, opened: OpenSegments) -> None:
        self.parts = tuple(entry for _, entry in parts)
        self.deleted = deleted
        self._folders = [folder for folder, _ in parts]
        self._opened = opened
        self._alive: dict[int, Alive] = {}  # of each segment, as far as deletions go

    @property
    def entry(self) -> ShardEntry:
        """Of the first segment. Task, release, fingerprint and width are the same for all."""
        return self.parts[0]

    @property
    def state(self) -> str:
        """Names what it holds: another text stands for other vectors."""
        return "+".join(part.id for part in self.parts) + f"-{len(self.deleted)}"

    @property
    def count(self) -> int:
        return sum(entry.count for entry in self.parts) - len(self.deleted)

    @property
    def dim(self) -> int:
        return self.entry.dim

    @property
    def ids(self) -> Ids:
        """``int64 [count]``, ascending."""
        every: list[Ids] = []
        for folder, entry in zip(self._folders, self.parts, strict=True):
            with self._opened.use(folder, entry) as segment:
                every.append(segment.ids)
        if len(every) == 1 and not len(self.deleted):
            return every[0]
        return np.setdiff1d(np.concatenate(every), self.deleted)

    def search(
        self, query: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> Hits:
        """The k nearest by inner product. Equal scores are ordered by id, also where k cuts between them.

        Args:
            query: ``float32 [dim]``, finite.
            exclude: further ids to leave out; unknown ones do not matter.
            among: ids that may be found, where not all may; unknown ones do not matter.

        Raises:
            ValueError: the query is not a finite vector of this width, or ``k`` is below one.
        """
        found = [segment.search(query, k, alive) for segment, alive in self._asked(exclude, among)]
        return found[0] if len(found) == 1 else _best(found, k)

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> list[Hits]:
        """What :meth:`search` finds for each query; the vectors are read once for many of them.

        Args:
            queries: ``float32 [n, dim]``, finite.
        """
        found = [segment.search_many(queries, k, alive) for segment, alive in self._asked(exclude, among)]
        return found[0] if len(found) == 1 else [_best(every, k) for every in zip(*found, strict=True)]

    def vectors(self, ids: Ids) -> Vectors:
        """Stored vectors ``float32 [len(ids), dim]``, as they were rounded.

        Raises:
            ShardMissing: an id is not in this shard, or was deleted.
        """
        ids = np.asarray(ids, np.int64)
        found = np.empty((len(ids), self.dim), np.float32)
        missing = np.ones(len(ids), bool)
        for folder, entry in zip(self._folders, self.parts, strict=True):
            with self._opened.use(folder, entry) as segment:
                here = segment.rows(ids) >= 0
                found[here] = segment.vectors(ids[here])
                missing &= ~here
        if len(self.deleted):
            missing |= np.isin(ids, self.deleted)
        if missing.any():
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[missing][0])}")
        return found

    def _asked(
        self, exclude: Iterable[int] | Ids, among: Ids | None
    ) -> Iterator[tuple[Segment, Alive | None]]:
        """Each segment, open for as long as the loop is at it, and which of its rows may be found."""
        more = exclude if isinstance(exclude, np.ndarray) else np.fromiter(exclude, np.int64)
        for number, (folder, entry) in enumerate(zip(self._folders, self.parts, strict=True)):
            with self._opened.use(folder, entry) as segment:
                alive = self._alive.get(number)
                if alive is None and len(self.deleted):
                    alive = self._alive[number] = segment.without(self.deleted)
                if len(more) or among is not None:
                    alive = segment.without(np.concatenate([self.deleted, more]), among)
                yield segment, alive


def _best(found: Sequence[Hits], k: int) -> Hits:
    """Of all segments."""
    ids = np.concatenate([hits.ids for hits in found])
    scores = np.concatenate([hits.scores for hits in found])
    best = np.lexsort((ids, -scores))[:k]
    return Hits(ids[best], scores[best])
