"""A shard whose rows are in a partition in Milvus."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Scores, Vectors, batches
from index.errors import ShardMissing
from index.files.manifest_format import SegmentEntry
from index.files.segment_files import load_ids
from index.hits import Hits, combine_hits, rank_hits
from index.milvus.milvus_partitions import MilvusPartitions
from index.milvus.milvus_rows import (
    MAX_LISTED_IDS,
    MAX_REQUEST_BYTES,
    format_ids,
    segment_number,
    split_place,
)
from index.shards.searchable_shard import SearchableShard

__all__ = ["MAX_HITS", "MilvusShard"]

MAX_HITS = 262_144  # of all queries of one request
_SETTLED_SECONDS = 60  # age at which every replica has a row; Milvus lets replicas lag by 5 seconds


class MilvusShard(SearchableShard):
    """Searches a partition, restricted to the segments of one generation."""

    is_remote = True

    def __init__(
        self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids, partitions: MilvusPartitions
    ) -> None:
        """Open a shard.

        Args:
            segments: Folder and entry of each segment, in order of publication.
            deleted: Deleted ids, ascending.
            partitions: Partitions of the server.
        """
        super().__init__(segments, deleted)
        self._partitions = partitions
        self._segment_filter = (
            f"shard in [{', '.join(str(segment_number(entry.id)) for entry in self.segments)}]"
        )

    def search_many(
        self, queries: Vectors, k: int, exclude: Iterable[int] | Ids = (), include: Ids | None = None
    ) -> list[Hits]:
        queries = self._valid_queries(queries, k)
        excluded = np.asarray(exclude if isinstance(exclude, np.ndarray) else list(exclude), np.int64)
        hidden = np.union1d(self.deleted, excluded)
        chosen = None if include is None else np.setdiff1d(np.intersect1d(include, self.ids), hidden)
        rankings: list[list[Hits | None]] = [[None]] * len(queries)
        if k < MAX_LISTED_IDS:
            parts = [self._search_part(queries, k, filter_) for filter_ in self._filters(hidden, chosen)]
            rankings = [[part[number] for part in parts] for number in range(len(queries))]
        results = []
        for query, parts_of_query in zip(queries, rankings, strict=True):
            ranked = [part for part in parts_of_query if part is not None]
            if len(ranked) < len(parts_of_query):
                if chosen is None:
                    chosen = np.setdiff1d(self.ids, hidden)
                ranked = [rank_hits(chosen, self._scores(query, chosen), k)]
            results.append(combine_hits(ranked, k))
        return results

    def _segment_ids(self, folder: Path, entry: SegmentEntry) -> Ids:
        return load_ids(folder, entry)

    def _fetch(self, ids: Ids) -> Iterator[tuple[npt.NDArray[np.bool_], Vectors]]:
        size = min(MAX_LISTED_IDS, max(MAX_REQUEST_BYTES // (4 * self.dim), 1))
        place = split_place(self.entry.place)
        for batch in batches(np.setdiff1d(ids, self.deleted), size):
            expression = f"{self._segment_filter} and id in {format_ids(batch)}"
            stored, vectors = self._partitions.fetch(*place, self.dim, expression, self._consistency())
            present = np.isin(ids, stored)
            yield present, vectors[np.searchsorted(stored, ids[present])]

    def _filters(self, hidden: Ids, chosen: Ids | None) -> Iterator[str]:
        """Disjoint filter expressions that cover the rows to search; several where a list of ids is too long for one.

        Args:
            hidden: Deleted and excluded ids, ascending.
            chosen: The only ids to search; None: all that are not hidden.
        """
        if chosen is not None:
            for batch in batches(chosen, MAX_LISTED_IDS):
                yield f"{self._segment_filter} and id in {format_ids(batch)}"
        elif not len(hidden):
            yield self._segment_filter
        else:
            parts = list(batches(hidden, MAX_LISTED_IDS))
            for number, part in enumerate(parts):
                lower = f" and id >= {part[0]}" if number else ""
                upper = f" and id < {parts[number + 1][0]}" if number + 1 < len(parts) else ""
                yield f"{self._segment_filter}{lower}{upper} and id not in {format_ids(part)}"

    def _search_part(self, queries: Vectors, k: int, expression: str) -> list[Hits | None]:
        """For each query the k best rows that satisfy a filter; None if more equal scores than one search returns."""
        place = split_place(self.entry.place)
        results: list[Hits | None] = [None] * len(queries)
        open_queries, limit = np.arange(len(queries)), k + 1
        while len(open_queries):
            limit = min(limit, MAX_LISTED_IDS)
            # Milvus does not specify which of several equal scores it returns: continue until the result ends between
            # different scores.
            undecided = []
            for batch in batches(open_queries, max(MAX_HITS // limit, 1)):
                found = self._partitions.search(
                    *place, queries[batch], limit, expression, self._consistency()
                )
                for number, (ids, scores) in zip(batch.tolist(), found, strict=True):
                    if len(ids) < limit or scores[-1] < scores[k - 1]:
                        results[number] = rank_hits(ids, scores, k)
                    else:
                        undecided.append(number)
            if limit == MAX_LISTED_IDS:
                break
            open_queries, limit = np.array(undecided, np.int64), 2 * limit
        return results

    def _scores(self, query: Vectors, ids: Ids) -> Scores:
        """Scores of more rows than the server ranks in one search."""
        scores = [self.vectors(batch) @ query for batch in batches(ids, MAX_LISTED_IDS)]
        return np.concatenate([np.empty(0, np.float32), *scores])

    def _consistency(self) -> str:
        """Consistency level of a search: recent rows may not have reached every replica yet."""
        try:
            written = max(folder.stat().st_mtime for folder, _ in self._folders)
        except OSError as error:
            raise ShardMissing(f"the folder of a shard of task {self.entry.task} is missing") from error
        return "Strong" if time.time() - written < _SETTLED_SECONDS else "Bounded"
