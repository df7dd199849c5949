"""What is left of a task of which every vector was deleted, and its shard compacted: its place, and nothing in it.

The manifest goes on naming the task, its release and its encoder, so it stays published, pinned and counted. The folder
of its shard holds a description and an empty list of ids, wherever its vectors were before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.errors import ShardMissing
from index.format import ShardEntry
from index.segment import Hits
from index.vector_store import Depth, Rows, TaskVectors

__all__ = ["EmptyShards"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class EmptyShards:
    """The :class:`~index.vector_store.VectorStore` of shards without vectors: their folders say all."""

    def place(self, task: str, dim: int) -> str:
        return ""

    def stage(
        self,
        folder: Path,
        entry: ShardEntry,
        rows: Rows,
        queries: Vectors | None,
        working: Callable[[], object],
    ) -> None:
        """Nothing: there are no rows."""

    def insert(self, entry: ShardEntry, ids: Ids, rows: Rows) -> None:
        """Nothing: there are no rows."""

    def check(self, folder: Path, entry: ShardEntry, depth: Depth) -> None:
        """Nothing: its files were compared with their checksums."""

    def open(self, parts: Sequence[tuple[Path, ShardEntry]], deleted: Ids) -> TaskVectors:
        ((_, entry),) = parts
        return _Empty(entry)

    def drop(self, shard: str, place: str) -> None:
        """Nothing: the folder goes."""


class _Empty:
    """The :class:`~index.vector_store.TaskVectors` of a task that has none."""

    remote = False
    count = 0

    def __init__(self, entry: ShardEntry) -> None:
        self.entry = entry
        self.parts = (entry,)
        self.ids = self.deleted = np.empty(0, np.int64)

    @property
    def state(self) -> str:
        return self.entry.id

    @property
    def dim(self) -> int:
        return self.entry.dim

    def search(
        self, query: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> Hits:
        return self.search_many(np.asarray(query)[None], k)[0]

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> list[Hits]:
        queries = np.asarray(queries)
        if k < 1 or queries.shape[1:] != (self.dim,) or not np.isfinite(queries).all():
            raise ValueError(
                f"a query of task {self.entry.task} must be {self.dim} finite numbers, and k at least 1"
            )
        return [Hits(np.empty(0, np.int64), np.empty(0, np.float32))] * len(queries)

    def vectors(self, ids: Ids) -> Vectors:
        if len(ids):
            raise ShardMissing(f"the shard of task {self.entry.task} has no vector {int(ids[0])}")
        return np.empty((0, self.dim), np.float32)
