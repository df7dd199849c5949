"""What is left of a task of which every vector was deleted, and its shard compacted: its place, and nothing in it.

The manifest goes on naming the task, its release and its encoder, so it stays published, pinned and counted. The folder
of its shard holds a description and an empty list of ids, wherever its vectors were before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.files.manifest_format import SegmentEntry
from index.hits import Hits
from index.shards.searchable_shard import SearchableShard
from index.shards.vector_store import CheckLevel, Rows

__all__ = ["EmptyVectorStore"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_NONE: Ids = np.empty(0, np.int64)


class EmptyVectorStore:
    """The :class:`~index.shards.vector_store.VectorStore` of shards without vectors: their folders say all."""

    def place(self, task: str, dim: int) -> str:
        return ""

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: Rows,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> None:
        """Nothing: there are no rows."""

    def insert(self, entry: SegmentEntry, ids: Ids, rows: Rows) -> None:
        """Nothing: there are no rows."""

    def check(self, folder: Path, entry: SegmentEntry, depth: CheckLevel) -> None:
        """Nothing: its files were compared with their checksums."""

    def open(self, parts: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        return _Empty(parts, deleted)

    def drop(self, shard: str, place: str) -> None:
        """Nothing: the folder goes."""


class _Empty(SearchableShard):
    """A task that has no vector."""

    def _ids_of(self, folder: Path, entry: SegmentEntry) -> Ids:
        return _NONE

    def _found(self, queries: Vectors, k: int, exclude: Ids, among: Ids | None) -> Iterable[Sequence[Hits]]:
        if k < 1 or queries.shape[1:] != (self.dim,) or not np.isfinite(queries).all():
            raise ValueError(
                f"a query of task {self.entry.task} must be {self.dim} finite numbers, and k at least 1"
            )
        return [[Hits(_NONE, np.empty(0, np.float32))]] * len(queries)

    def _stored(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        return iter(())
