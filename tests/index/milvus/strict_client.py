"""milvus-lite with the rules of a Milvus server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class StrictClient:
    """milvus-lite with the rules of a server: half precision, and partitions that are loaded one by one."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.loaded: set[tuple[str, str]] = set()

    def get(self, name: str) -> Callable[..., Any]:
        return getattr(self, name, None) or getattr(self._client, name)

    def create_collection(self, collection: str, schema: Any, **given: Any) -> None:
        from pymilvus import DataType, MilvusClient

        assert [field.dtype for field in schema.fields][3] == DataType.FLOAT16_VECTOR
        single = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        for field in schema.fields[:3]:
            single.add_field(field.name, field.dtype, is_primary=field.is_primary, **field.params)
        single.add_field("vector", DataType.FLOAT_VECTOR, **schema.fields[3].params)
        self._client.create_collection(collection, schema=single, **given)

    def describe_collection(self, collection: str) -> dict[str, Any]:
        from pymilvus import DataType

        return {"fields": [{"name": "vector", "type": DataType.FLOAT16_VECTOR}]}

    def load_partitions(self, collection: str, partitions: list[str]) -> None:
        assert self._client.list_indexes(collection), "Milvus only loads collections with an index"
        self._client.load_collection(collection)
        self.loaded |= {(collection, partition) for partition in partitions}

    def release_partitions(self, collection: str, partitions: list[str]) -> None:
        self.loaded -= {(collection, partition) for partition in partitions}

    def drop_partition(self, collection: str, partition: str) -> None:
        assert (collection, partition) not in self.loaded, "Milvus does not drop loaded partitions"
        self._client.drop_partition(collection, partition)

    def search(
        self, collection: str, data: list[np.ndarray], partition_names: list[str], **given: Any
    ) -> Any:
        self._require(collection, partition_names)
        assert {query.dtype for query in data} == {np.dtype(np.float16)}
        data = [query.astype(np.float32) for query in data]
        return self._client.search(collection, data=data, partition_names=partition_names, **given)

    def query(self, collection: str, partition_names: list[str], **given: Any) -> Any:
        self._require(collection, partition_names)
        rows = self._client.query(collection, partition_names=partition_names, **given)
        for row in rows:
            if "vector" in row:
                row["vector"] = [np.array(row["vector"], np.float16).tobytes()]
        return rows

    def delete(self, collection: str, partition_name: str, **given: Any) -> Any:
        self._require(collection, [partition_name])
        return self._client.delete(collection, partition_name=partition_name, **given)

    def upsert(self, collection: str, data: list[dict[str, Any]], **given: Any) -> Any:
        assert all(row["vector"].dtype == np.float16 for row in data)
        return self._client.upsert(
            collection, [{**row, "vector": row["vector"].astype(np.float32)} for row in data], **given
        )

    def release_all(self) -> None:
        """Release all partitions, like another process."""
        self.loaded.clear()

    def _require(self, collection: str, partitions: list[str]) -> None:
        from pymilvus import MilvusException

        if not {(collection, partition) for partition in partitions} <= self.loaded:
            raise MilvusException(201, "partition not loaded")
