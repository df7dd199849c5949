"""What a task has in the store's files, as its readers see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.files.manifest_format import SegmentEntry
from index.hits import Hits
from index.scanning.exact_scan import Alive
from index.scanning.segment import Segment
from index.scanning.segment_cache import SegmentCache
from index.shards.searchable_shard import SearchableShard, as_ids, best

__all__ = ["FaissShard"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class FaissShard(SearchableShard):
    """The :class:`~index.shards.vector_store.SearchableShard` of files.

    A file is opened when something is asked of it, and may be closed in between. Whatever is asked therefore raises
    ShardMissing or ShardCorrupt when the file was lost since the snapshot was made.
    """

    def __init__(
        self, parts: Sequence[tuple[Path, SegmentEntry]], deleted: Ids, opened: SegmentCache
    ) -> None:
        super().__init__(parts, deleted)
        self._opened = opened
        self._alive: dict[int, Alive] = {}  # of each segment, as far as deletions go

    def search(
        self, query: Vectors, k: int, exclude: Iterable[int] | Ids = (), among: Ids | None = None
    ) -> Hits:
        """One query is not searched as many are: that costs less than to prepare for them."""
        each = self._each(as_ids(exclude), among)
        return best([segment.search(query, k, alive) for segment, alive in each], k)

    def _ids_of(self, folder: Path, entry: SegmentEntry) -> Ids:
        with self._opened.use(folder, entry) as segment:
            return segment.ids

    def _found(self, queries: Vectors, k: int, exclude: Ids, among: Ids | None) -> Iterable[Sequence[Hits]]:
        each = self._each(exclude, among)
        return zip(*[segment.search_many(queries, k, alive) for segment, alive in each], strict=True)

    def _stored(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        for folder, entry in self._folders:
            with self._opened.use(folder, entry) as segment:
                here = segment.rows(ids) >= 0
                yield here, segment.vectors(ids[here])

    def _each(self, exclude: Ids, among: Ids | None) -> Iterator[tuple[Segment, Alive | None]]:
        """Each segment, open for as long as the loop is at it, and which of its rows may be found."""
        for number, (folder, entry) in enumerate(self._folders):
            with self._opened.use(folder, entry) as segment:
                alive = self._alive.get(number)
                if alive is None and len(self.deleted):
                    alive = self._alive[number] = segment.without(self.deleted)
                if len(exclude) or among is not None:
                    alive = segment.without(np.concatenate([self.deleted, exclude]), among)
                yield segment, alive
