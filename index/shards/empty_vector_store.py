"""Shards without vectors: the state of a task after all its vectors were deleted and its shard was compacted.

The manifest still names the task, its release and its encoder, so the task stays published, pinned and counted. The
folder of its segment has a description and an empty list of ids, wherever its vectors were before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Vectors
from index.files.manifest_format import SegmentEntry
from index.hits import NO_HITS, Hits
from index.shards.searchable_shard import SearchableShard
from index.shards.vector_store import VectorStore


class EmptyVectorStore(VectorStore):
    """Vector store of segments without vectors; it stores nothing."""

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
