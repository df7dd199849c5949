"""The vector store in Milvus: a server, or for tests a local ``.db`` file (milvus-lite, one process at a time)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index.arrays import Hits, Ids, Scores, Vectors, batches, combine_hits, rank_hits
from index.errors import ShardCorrupt, ShardMissing
from index.files.manifest_format import SegmentEntry
from index.files.segment_files import DIGEST, display_name, load_ids
from index.milvus.milvus_partitions import (
    MAX_LISTED_IDS,
    MAX_REQUEST_BYTES,
    STORE_NAME,
    MilvusPartitions,
    digest_rows,
    format_ids,
    partition_name,
    row_key,
    segment_number,
    split_place,
)
from index.shards.vector_store import CheckLevel, SearchableShard, VectorBatches, VectorStore
from index.store_options import MilvusAddress

MAX_HITS = 262_144  # over all queries of one request
# Age from which every replica has a row: Milvus lets replicas lag by 5 seconds, and clocks may differ by a minute.
_SETTLED_SECONDS = 120


class MilvusShard(SearchableShard):
    """Searches a partition, restricted to the segments of one generation."""

    is_remote = True

    def __init__(
        self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids, partitions: MilvusPartitions
    ) -> None:
        super().__init__(segments, deleted)
        self._partitions = partitions
        numbers = ", ".join(str(segment_number(entry.id)) for entry in self.segments)
        self._segment_filter = f"shard in [{numbers}]"

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
            rankings = [[hits[number] for hits in parts] for number in range(len(queries))]
        results = []
        for query, parts_of_query in zip(queries, rankings, strict=True):
            ranked = [hits for hits in parts_of_query if hits is not None]
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
        """Yield disjoint filters for the chosen IDs (None: all), or all except the hidden ones, both ascending.

        Several are needed if a list of IDs is too long for one.
        """
        if chosen is not None:
            for batch in batches(chosen, MAX_LISTED_IDS):
                yield f"{self._segment_filter} and id in {format_ids(batch)}"
        elif not len(hidden):
            yield self._segment_filter
        else:
            ranges = list(batches(hidden, MAX_LISTED_IDS))
            for number, excluded in enumerate(ranges):
                lower = f" and id >= {excluded[0]}" if number else ""
                upper = f" and id < {ranges[number + 1][0]}" if number + 1 < len(ranges) else ""
                yield f"{self._segment_filter}{lower}{upper} and id not in {format_ids(excluded)}"

    def _search_part(self, queries: Vectors, k: int, expression: str) -> list[Hits | None]:
        """Find each query's k best rows that satisfy a filter; None if it has more ties than one search returns."""
        place = split_place(self.entry.place)
        results: list[Hits | None] = [None] * len(queries)
        open_queries, limit = np.arange(len(queries)), k + 1
        while len(open_queries):
            limit = min(limit, MAX_LISTED_IDS)
            # Milvus does not specify which of several ties it returns: continue until the result ends between different
            # scores.
            undecided = []
            for batch in batches(open_queries, max(MAX_HITS // limit, 1)):
                rankings = self._partitions.search(
                    *place, queries[batch], limit, expression, self._consistency()
                )
                for number, (ids, scores) in zip(batch.tolist(), rankings, strict=True):
                    if len(ids) < limit or scores[-1] < scores[k - 1]:
                        results[number] = rank_hits(ids, scores, k)
                    else:
                        undecided.append(number)
            if limit == MAX_LISTED_IDS:
                break
            open_queries, limit = np.array(undecided, np.int64), 2 * limit
        return results

    def _scores(self, query: Vectors, ids: Ids) -> Scores:
        """Compute the scores of more rows than the server ranks in one search."""
        scores = [self.vectors(batch) @ query for batch in batches(ids, MAX_LISTED_IDS)]
        return np.concatenate([np.empty(0, np.float32), *scores])

    def _consistency(self) -> str:
        """Choose a search's consistency level: recent rows may not have reached every replica yet."""
        try:
            written = max(folder.stat().st_mtime for folder, _ in self._folders)
        except OSError as error:
            raise ShardMissing(f"the folder of a shard of task {self.entry.task} is missing") from error
        return "Strong" if time.time() - written < _SETTLED_SECONDS else "Bounded"


class MilvusVectorStore(VectorStore):
    """Vector store in Milvus. Connects on first use."""

    def __init__(self, address: MilvusAddress) -> None:
        self.address = address
        self.partitions = MilvusPartitions(address)

    def place(self, task: str, dim: int) -> str:
        partition = partition_name(task)
        return f"{STORE_NAME}:{self.partitions.choose_collection(partition, dim)}/{partition}"

    def stage(
        self,
        folder: Path,
        entry: SegmentEntry,
        rows: VectorBatches,
        queries: Vectors | None,
        heartbeat: Callable[[], object],
    ) -> None:
        """Write the digest. There is no ANN structure, since Milvus has its own index."""
        digest = {"sha256": digest_rows(rows())}
        (folder / DIGEST).write_text(json.dumps(digest) + "\n", encoding="utf-8")

    def insert(self, entry: SegmentEntry, ids: Ids, rows: VectorBatches) -> None:
        collection, partition = split_place(entry.place)
        self.partitions.create(collection, partition, entry.dim)
        if self._count(entry) == entry.count:
            return
        number, size, written = segment_number(entry.id), max(MAX_REQUEST_BYTES // (4 * entry.dim), 1), 0
        for batch in rows():
            for vectors in batches(batch, size):
                fields = [
                    {"key": row_key(entry.id, id), "id": id, "shard": number}
                    for id in ids[written : written + len(vectors)].tolist()
                ]
                written += len(vectors)
                self.partitions.upsert(collection, partition, fields, vectors.astype(np.float16))
        self.check(Path(), entry, "rows")

    def check(self, folder: Path, entry: SegmentEntry, level: CheckLevel) -> None:
        name = display_name(entry)
        place = f"{entry.place.partition(':')[2]} in Milvus at {self.address.display_uri}"
        if not self.partitions.exists(*split_place(entry.place)):
            raise ShardMissing(f"{name}: {place} does not exist; restore it from Milvus' backup")
        if level == "exists":
            return
        count = self._count(entry)
        if count != entry.count:
            raise ShardCorrupt(
                f"{name}: {place} has {count} of its {entry.count} vectors; restore it from Milvus' backup"
            )
        if level == "bytes":
            expected = json.loads((folder / DIGEST).read_text(encoding="utf-8"))["sha256"]
            shard = self.open([(folder, entry)], np.empty(0, np.int64))
            if digest_rows(shard.vectors(ids) for ids in batches(shard.ids, MAX_LISTED_IDS)) != expected:
                raise ShardCorrupt(f"{name}: vectors in {place} were altered; restore it from Milvus' backup")

    def open(self, segments: Sequence[tuple[Path, SegmentEntry]], deleted: Ids) -> SearchableShard:
        return MilvusShard(segments, deleted, self.partitions)

    def drop(self, segment_id: str, place: str) -> None:
        self.partitions.delete_rows(*split_place(place), f"shard == {segment_number(segment_id)}")

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        self.partitions.connection.close()

    def _count(self, entry: SegmentEntry) -> int:
        return self.partitions.count(*split_place(entry.place), f"shard == {segment_number(entry.id)}")
