"""Collections, partitions and rows in Milvus.

::

    <collection>_<dim>_<n>     n = 0, 1, …; up to 1,000 partitions each
    └── t_<task>               one partition per task
        ├── key      VARCHAR   primary: <first 15 digits of the segment's ID>:<ID>
        ├── id       INT64     vector ID
        ├── shard    INT64     the number that these 15 hexadecimal digits represent
        └── vector   FLOAT16_VECTOR, metric IP (FLOAT_VECTOR where it is missing: milvus-lite, Milvus before 2.4)

Milvus allows 1,024 partitions in a collection and 65,536 in total (``rootCoord.maxPartitionNum``,
``rootCoord.maxGeneralCapacity``). A partition key has no such limit, but tasks would share its partitions by hash, and
could not be loaded or dropped one by one. A full collection is therefore followed by another, and the manifest records
each segment's collection: 10,000 tasks use ten.

Rows carry their segment's number, so that a task's copy, or an incomplete one, can exist next to the served rows
without being found. A search selects the segments of its generation, without their deleted IDs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Scores, Vectors
from index.errors import ShardMissing
from index.milvus.milvus_connection import MilvusConnection, TimedClient
from index.store_options import MilvusAddress, MilvusIndex

STORE_NAME = "milvus"
MAX_LISTED_IDS = 16_384  # IDs in one filter, and results of one search
MAX_REQUEST_BYTES = 16 * 1024**2  # Milvus rejects 64 MiB

_ID_DIGITS = 15  # of a segment's ID: 60 bits, so that the number is not negative


def partition_name(task: str) -> str:
    """Name a task's partition with letters, digits and underscores, distinct for all tasks."""
    plain = re.sub(r"\W", "_", task, flags=re.ASCII)[:200]
    return f"t_{plain}" if plain == task else f"t_{plain}_{hashlib.sha256(task.encode()).hexdigest()[:12]}"


def split_place(place: str) -> tuple[str, str]:
    """Split a place into collection and partition; raises ShardMissing for a place in another store."""
    name, _, path = place.partition(":")
    collection, slash, partition = path.partition("/")
    if name != STORE_NAME or not slash:
        raise ShardMissing(f"{place!r} is not a place in Milvus")
    return collection, partition


def segment_number(segment_id: str) -> int:
    """Compute a segment's number, the value of the field ``shard``."""
    return int(segment_id[:_ID_DIGITS], 16)


def row_key(segment_id: str, id: int) -> str:
    """Build a row's primary key."""
    return f"{segment_id[:_ID_DIGITS]}:{id}"


def row_id(row: Mapping[str, Any]) -> int:
    """Read the vector ID from a row's primary key; in search results, servers before 2.4 call the field ``id``."""
    return int(str(row["key"] if "key" in row else row["id"]).partition(":")[2])


def format_ids(ids: Ids) -> str:
    """Format IDs as a list in a filter expression."""
    return f"[{', '.join(map(str, ids.tolist()))}]"


def digest_rows(rows: Iterable[Vectors]) -> str:
    """Compute the SHA-256 of batches of vectors in half precision, as they are stored."""
    digest = hashlib.sha256()
    for batch in rows:
        digest.update(np.ascontiguousarray(batch, np.float16).tobytes())
    return digest.hexdigest()


def as_numbers(value: Any) -> npt.NDArray[Any]:
    """Parse a vector from the client: numbers, or the bytes of half-precision numbers."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], bytes):
        value = value[0]
    return np.frombuffer(value, np.float16) if isinstance(value, bytes) else np.asarray(value)


MAX_PARTITIONS = 1000  # per collection; Milvus allows 1,024
_INDEX_PARAMETERS: dict[MilvusIndex, dict[str, int]] = {
    "FLAT": {},
    "IVF_SQ8": {"nlist": 1024},
    "HNSW": {"M": 32, "efConstruction": 200},
}
_NOT_LOADED_CODES = (101, 103, 201, 202)  # collection or partition not loaded, or not completely


class MilvusPartitions:
    """Creates, loads, searches and drops partitions. A partition is identified by its collection and name."""

    def __init__(self, address: MilvusAddress) -> None:
        self.address = address
        self.connection = MilvusConnection(address, self._forget)
        # Loaded collections and partitions. Another process may release one: the server then rejects requests.
        self._loaded: set[tuple[str, str]] = set()
        self._names: dict[str, set[str]] = {}  # known partitions by collection
        self._dtypes: dict[str, type[np.floating]] = {}  # of vectors, by collection

    def choose_collection(self, partition: str, dim: int) -> str:
        """Find the collection that has a partition, or the first with room for it, which may not exist yet."""
        number, with_room = 0, None
        with self.connection.request("list its collections") as client:
            while client.has_collection(name := f"{self.address.collection}_{dim}_{number}"):
                partitions = client.list_partitions(name)
                if partition in partitions:
                    return name
                if with_room is None and len(partitions) < MAX_PARTITIONS:
                    with_room = name
                number += 1
        return with_room or name

    def create(self, collection: str, partition: str, dim: int) -> None:
        """Create a collection with its index, and a partition in it, unless they exist."""
        from pymilvus import DataType, MilvusClient

        with self.connection.request(f"create {partition}") as client:
            if not client.has_collection(collection):
                schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
                schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=40)
                schema.add_field("id", DataType.INT64)
                schema.add_field("shard", DataType.INT64)
                half = self.connection.has_half_precision
                schema.add_field(
                    "vector", DataType.FLOAT16_VECTOR if half else DataType.FLOAT_VECTOR, dim=dim
                )
                # Without an index, because a collection with an index is loaded completely.
                client.create_collection(collection, schema=schema, consistency_level="Bounded")
            if not client.list_indexes(collection):
                index = MilvusClient.prepare_index_params()
                index.add_index(
                    field_name="vector",
                    index_type=self.address.index,
                    metric_type="IP",
                    params=_INDEX_PARAMETERS[self.address.index],
                )
                client.create_index(collection, index)
            if not client.has_partition(collection, partition):
                client.create_partition(collection, partition)

    def exists(self, collection: str, partition: str) -> bool:
        """Check whether a partition exists; known partitions need no request."""
        if partition in self._names.get(collection, ()):
            return True
        with self.connection.request("list its partitions") as client:
            names = set(client.list_partitions(collection) if client.has_collection(collection) else ())
        self._names[collection] = names
        return partition in names

    def upsert(self, collection: str, partition: str, rows: list[dict[str, Any]], vectors: Vectors) -> None:
        """Write rows of half-precision vectors and other fields.

        Nothing is flushed: acknowledged rows are in Milvus' log, and it allows a collection one flush per ten seconds.
        """
        with self.connection.request(f"write to {partition}") as client:
            converted = self._convert(client, collection, vectors)
            rows = [{**row, "vector": vector} for row, vector in zip(rows, converted, strict=True)]
            client.upsert(collection, rows, partition_name=partition)

    def search(
        self, collection: str, partition: str, queries: Vectors, limit: int, expression: str, consistency: str
    ) -> list[tuple[Ids, Scores]]:
        """Find each query's best rows in a partition, best first: IDs and scores."""
        effort = {"IVF_SQ8": {"nprobe": 64}, "HNSW": {"ef": max(2 * limit, 128)}}.get(self.address.index, {})
        rankings = self._call_loaded(
            collection,
            partition,
            lambda client: client.search(
                collection,
                data=list(self._convert(client, collection, queries)),
                filter=expression,
                limit=limit,
                search_params={"metric_type": "IP", "params": effort},
                partition_names=[partition],
                anns_field="vector",
                consistency_level=consistency,
            ),
        )
        return [
            (
                np.array([row_id(hit) for hit in hits], np.int64),
                np.array([hit["distance"] for hit in hits], np.float32),
            )
            for hits in rankings
        ]

    def fetch(
        self, collection: str, partition: str, dim: int, expression: str, consistency: str
    ) -> tuple[Ids, Vectors]:
        """Read the IDs, ascending, and vectors of the rows that satisfy a filter."""
        rows = self._query(collection, partition, expression, ["key", "vector"], consistency)
        ids = np.array([row_id(row) for row in rows], np.int64)
        vectors = np.array([as_numbers(row["vector"]) for row in rows], np.float32).reshape(-1, dim)
        order = np.argsort(ids)
        return ids[order], vectors[order]

    def count(self, collection: str, partition: str, expression: str) -> int:
        """Count the rows that satisfy a filter."""
        rows = self._query(collection, partition, expression, ["count(*)"], "Strong")
        return int(rows[0]["count(*)"])

    def delete_rows(self, collection: str, partition: str, expression: str) -> None:
        """Delete the rows that satisfy a filter, and the partition when no row is left. Both may be missing."""
        with self.connection.request(f"drop {partition}") as client:
            if not client.has_collection(collection) or not client.has_partition(collection, partition):
                return
        self._call_loaded(
            collection,
            partition,
            lambda client: client.delete(collection, filter=expression, partition_name=partition),
        )
        if self.count(collection, partition, "id >= 0"):
            return
        with self.connection.request(f"drop {partition}") as client:
            if not self.connection.is_lite:
                client.release_partitions(collection, [partition])
                self._loaded.discard((collection, partition))
            client.drop_partition(collection, partition)
            self._names.get(collection, set()).discard(partition)

    def _query(
        self, collection: str, partition: str, expression: str, fields: list[str], consistency: str
    ) -> Any:
        return self._call_loaded(
            collection,
            partition,
            lambda client: client.query(
                collection,
                filter=expression,
                output_fields=fields,
                partition_names=[partition],
                consistency_level=consistency,
            ),
        )

    def _call_loaded(self, collection: str, partition: str, call: Callable[[TimedClient], Any]) -> Any:
        """Call a function with a loaded partition, and once more if another process has released it meanwhile."""
        from pymilvus import MilvusException

        for attempt in (1, 2):
            with self.connection.request(f"search {partition}") as client:
                try:
                    self._load(client, collection, partition)
                    return call(client)
                except MilvusException as error:
                    if attempt == 2 or error.code not in _NOT_LOADED_CODES:
                        raise
                    self._loaded.discard((collection, "" if self.connection.is_lite else partition))
        raise AssertionError("unreachable")

    def _load(self, client: TimedClient, collection: str, partition: str) -> None:
        """Load a partition on first use; milvus-lite loads only complete collections."""
        key = (collection, "" if self.connection.is_lite else partition)
        if key in self._loaded:
            return
        if self.connection.is_lite:
            client.load_collection(collection)
        else:
            client.load_partitions(collection, [partition])
        self._loaded.add(key)

    def _convert(self, client: TimedClient, collection: str, vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Convert vectors or queries to a collection's precision, which survives an upgrade of the server."""
        from pymilvus import DataType

        dtype = self._dtypes.get(collection)
        if dtype is None:
            fields = client.describe_collection(collection)["fields"]
            (stored,) = (field["type"] for field in fields if field["name"] == "vector")
            dtype = np.float16 if stored == DataType.FLOAT16_VECTOR else np.float32
            self._dtypes[collection] = dtype
        return np.asarray(vectors, dtype)

    def _forget(self) -> None:
        """Clear what is cached: the server may have changed."""
        self._names.clear()
        self._dtypes.clear()
        self._loaded.clear()
