"""The vector store in Milvus: a server, or for tests a local ``.db`` file (milvus-lite, one process at a time)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from index.arrays import Ids, Vectors, batches
from index.errors import ShardCorrupt, ShardMissing
from index.files.manifest_format import SegmentEntry
from index.files.segment_files import DIGEST, display_name
from index.milvus.milvus_address import MilvusAddress
from index.milvus.milvus_partitions import MilvusPartitions
from index.milvus.milvus_rows import (
    MAX_LISTED_IDS,
    MAX_REQUEST_BYTES,
    STORE_NAME,
    digest_rows,
    partition_name,
    row_key,
    segment_number,
    split_place,
)
from index.milvus.milvus_shard import MilvusShard
from index.shards.searchable_shard import SearchableShard
from index.shards.vector_store import CheckLevel, VectorBatches, VectorStore

__all__ = ["MilvusVectorStore"]


class MilvusVectorStore(VectorStore):
    """Vector store in Milvus. Connects on first use.

    Attributes:
        address: Address of the server.
        partitions: Partitions of the server.
    """

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
        """Write the digest. There is no ANN structure, because Milvus has an index of its own."""
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
