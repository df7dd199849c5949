"""A client of a Milvus server that exists only in memory."""

from __future__ import annotations

from typing import Any


class StubClient:
    """Counts how often partitions are loaded, and rejects queries of partitions that are not."""

    def __init__(self, version: str = "v2.6.16") -> None:
        self.loaded: set[tuple[str, str]] = set()
        self.loads = 0
        self.rows: list[dict[str, Any]] = []
        self.version = version

    def get_server_version(self) -> str:
        return self.version

    def load_partitions(self, collection: str, partitions: list[str], **_: Any) -> None:
        self.loads += 1
        self.loaded |= {(collection, each) for each in partitions}

    def release_partitions(self, collection: str, partitions: list[str], **_: Any) -> None:
        self.loaded -= {(collection, each) for each in partitions}

    def describe_collection(self, collection: str, **_: Any) -> dict[str, Any]:
        from pymilvus import DataType

        return {"fields": [{"name": "vector", "type": DataType.FLOAT16_VECTOR}]}

    def upsert(self, collection: str, rows: list[dict[str, Any]], **_: Any) -> None:
        self.rows += rows

    def query(self, collection: str, partition_names: list[str], **_: Any) -> list[dict[str, Any]]:
        from pymilvus import MilvusException

        if not {(collection, each) for each in partition_names} <= self.loaded:
            raise MilvusException(201, "partition not loaded")
        return [{"count(*)": 1}]
