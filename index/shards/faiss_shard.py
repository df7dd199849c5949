"""A shard whose rows are files in the folders of its segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Vectors
from index.files.manifest_format import SegmentEntry
from index.hits import Hits, combine_hits
from index.scanning.row_bitmap import RowBitmap
from index.scanning.segment import Segment
from index.scanning.segment_cache import SegmentCache
from index.shards.searchable_shard import SearchableShard

__all__ = ["FaissShard"]


class FaissShard(SearchableShard):
    """Searches the mapped files of a shard with FAISS.

    Files are opened on first use, and may be closed between searches. Every method therefore raises ShardMissing or
    ShardCorrupt if a file was lost after the shard was opened.
    """

    def __init__(
        self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids, cache: SegmentCache
    ) -> None:
        """Open a shard.

        Args:
            segments: Folder and entry of each segment, in order of publication.
            deleted: Deleted ids, ascending.
            cache: Cache that opens and closes the files.
        """
        super().__init__(segments, deleted)
        self._cache = cache
        self._live_rows: dict[str, RowBitmap] = {}  # by segment id, rows that are not deleted

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> list[Hits]:
        queries = self._valid_queries(queries, k)
        excluded = exclude if isinstance(exclude, np.ndarray) else np.fromiter(exclude, np.int64)
        found = []
        for folder, entry in self._folders:
            with self._cache.use(folder, entry) as segment:
                if len(excluded) or include is not None:
                    live: RowBitmap | None = segment.live_rows(
                        np.concatenate([self.deleted, excluded]), include
                    )
                else:
                    live = self._undeleted_rows(segment) if len(self.deleted) else None
                found.append(segment.search_many(queries, k, live))
        if len(found) == 1:
            return found[0]
        return [combine_hits(rankings, k) for rankings in zip(*found, strict=True)]

    def _undeleted_rows(self, segment: Segment) -> RowBitmap:
        live = self._live_rows.get(segment.entry.id)
        if live is None:
            live = self._live_rows[segment.entry.id] = segment.live_rows(self.deleted)
        return live

    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        with self._cache.use(folder, entry) as segment:
            return segment.ids

    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        for folder, entry in self._folders:
            with self._cache.use(folder, entry) as segment:
                present = segment.rows(ids) >= 0
                yield present, segment.vectors(ids[present])
