"""The cache of loaded partitions."""

from __future__ import annotations

import threading
import time

import pytest

from index.errors import StoreUnavailable
from index.milvus.milvus_address import MilvusAddress
from index.milvus.milvus_partitions import MilvusPartitions
from index.milvus.partition_cache import PartitionCache
from tests.index.milvus.stub_client import StubClient

pytest.importorskip("milvus_lite")


class TestPartitionCache:
    def test_least_recently_used_partition_is_released_first(self) -> None:
        server, held = StubClient(), PartitionCache(2)
        for name in ("a", "b", "a", "c"):
            with held.use(server, "x", name, whole=False):
                assert ("x", name) in server.loaded
        assert server.loaded == {("x", "a"), ("x", "c")}
        assert server.loads == 3

    def test_partition_in_use_is_not_released(self) -> None:
        server, held = StubClient(), PartitionCache(1)
        with held.use(server, "x", "a", whole=False), held.use(server, "x", "b", whole=False):
            assert len(server.loaded) == 2
        assert len(server.loaded) == 1

    def test_partitions_stay_loaded_without_limit(self) -> None:
        server, held = StubClient(), PartitionCache()
        for number in range(50):
            with held.use(server, "x", str(number), whole=False):
                pass
        assert len(server.loaded) == 50

    def test_concurrent_uses_load_partition_once(self) -> None:
        server, held = StubClient(), PartitionCache(1)

        def work() -> None:
            with held.use(server, "x", "a", whole=False):
                time.sleep(0.001)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.loads == 1

    def test_partition_released_elsewhere_is_loaded_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        server = StubClient()
        monkeypatch.setattr("pymilvus.MilvusClient", lambda *_, **__: server)
        partitions = MilvusPartitions(MilvusAddress("http://127.0.0.1:9"))
        assert partitions.count("x", "a", "id >= 0") == 1
        server.loaded.clear()
        assert partitions.count("x", "a", "id >= 0") == 1
        assert server.loads == 2
        monkeypatch.setattr(server, "load_partitions", lambda *_, **__: None)
        server.loaded.clear()
        with pytest.raises(StoreUnavailable, match="partition not loaded"):
            partitions.count("x", "a", "id >= 0")
