"""Connections to Milvus: lost servers, rejected tokens, server versions, names and the wire format."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from rich.console import Console
from rich.traceback import Traceback

from index.errors import ShardMissing, StoreUnavailable
from index.index_snapshot import IndexSnapshot
from index.milvus import milvus_connection
from index.milvus.milvus_partitions import MilvusPartitions, as_numbers, partition_name, split_place
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore
from index.store_options import MilvusAddress
from tests.index.published_shards import age, open_shard_of
from tests.milvus import Lite, Milvus, fresh_milvus


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


pytest.importorskip("milvus_lite")


class TestLostServer:
    SECRET, TOKEN = "s3" + "cret", "t0" + "ken"  # split, because a traceback shows this file
    URI = f"http://somebody:{SECRET}@127.0.0.1:9"

    def test_errors_hide_secrets_and_requests_pause_after_failure(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        address = MilvusAddress(self.URI, token=f"{self.TOKEN}:{self.SECRET}", timeout=0.5)
        lost = MilvusVectorStore(address)
        with pytest.raises(
            StoreUnavailable, match=r"http://127\.0\.0\.1:9 .*CINESTRATA_MILVUS__URI"
        ) as first:
            lost.place("a", 8)
        monkeypatch.setattr("pymilvus.MilvusClient", None)  # a new connection would fail
        with pytest.raises(StoreUnavailable, match="did not answer a moment ago") as second:
            lost.place("a", 8)
        log = io.StringIO()  # like the console of structlog: with the variables of every frame
        Console(file=log, width=10_000).print(
            Traceback.from_exception(first.type, first.value, first.tb, show_locals=True)
        )
        assert "StoreUnavailable" in log.getvalue()
        for text in (str(first.value), str(second.value), repr(address), caplog.text, log.getvalue()):
            assert self.SECRET not in text
            assert self.TOKEN not in text

    def test_rejected_token_is_reported(self) -> None:
        class Denies(grpc.GenericRpcHandler):
            def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
                return grpc.unary_unary_rpc_method_handler(
                    lambda _, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown token")
                )

        denies = grpc.server(ThreadPoolExecutor(2), handlers=[Denies()])
        port = denies.add_insecure_port("127.0.0.1:0")
        denies.start()
        token = f"{self.TOKEN}:{self.SECRET}"
        try:
            with pytest.raises(StoreUnavailable, match="Check CINESTRATA_MILVUS__TOKEN") as denied:
                MilvusVectorStore(MilvusAddress(f"http://127.0.0.1:{port}", token=token, timeout=2)).place(
                    "a", 8
                )
        finally:
            denies.stop(None)
        assert "unknown token" in str(denied.value)
        assert token not in str(denied.value)

    def test_tasks_of_lost_server_are_degraded(
        self, tmp_path: Path, server: str, publish_task: Callable, unit: Callable
    ) -> None:
        root = tmp_path / "index"
        there = MilvusVectorStore(MilvusAddress(server, collection="lost"))
        publish_task(ShardStore(root), "files", range(5))
        publish_task(ShardStore(root, remote=there, write_remote=True), "away", range(10, 15))
        lost = ShardStore(root, remote=MilvusVectorStore(MilvusAddress("http://127.0.0.1:9", timeout=0.2)))
        snapshot = IndexSnapshot.open(lost)
        assert snapshot.tasks == ["files"]
        assert "127.0.0.1:9" in snapshot.degraded["away"]
        none = IndexSnapshot.open(ShardStore(root))
        assert none.tasks == ["files"]
        assert "set CINESTRATA_MILVUS__URI" in none.degraded["away"]
        repaired = IndexSnapshot.open(ShardStore(root, remote=there), previous=snapshot)
        assert repaired.degraded == {}

    def test_lost_partition_is_detected_without_verification(
        self, store: ShardStore, publish_task: Callable, milvus: MilvusVectorStore
    ) -> None:
        publish_task(store, "a", range(5))
        publish_task(store, "b", range(5, 9))
        shard = store.manifest().shards["a"]
        milvus.drop(shard.id, shard.place)
        snapshot = IndexSnapshot.open(store, max_verified_bytes=0)
        assert list(snapshot.degraded) == ["a"]
        assert "does not exist; restore it from Milvus' backup" in snapshot.degraded["a"]
        assert [entry.task for entry in snapshot.unverified_segments] == ["b"]

    def test_orphaned_rows_are_dropped_when_server_is_back(
        self, store: ShardStore, write: Callable, publish_task: Callable, milvus: MilvusVectorStore
    ) -> None:
        publish_task(store, "b", range(5, 9))
        _, shard = write(store, "a", range(5))
        folder = store.shard_folder(shard.id)
        age(folder)
        for lost in (None, MilvusVectorStore(MilvusAddress("http://127.0.0.1:9", timeout=0.2))):
            ShardStore(store.root, remote=lost).collect_garbage()
            assert folder.exists()
        store.collect_garbage()
        assert not folder.exists()
        assert not milvus.partitions.exists(*split_place(shard.place))

    def test_search_recovers_when_server_is_back(
        self, tmp_path: Path, publish_task: Callable, unit: Callable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(milvus_connection, "RETRY_SECONDS", 0)
        with fresh_milvus(tmp_path) as server:
            vectors = MilvusVectorStore(MilvusAddress(server.uri, timeout=2))
            store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
            publish_task(store, "a", range(5))
            task = open_shard_of(store)
            before = task.search(unit(1)[0], 5).ids.tolist()
            server.lose()
            with pytest.raises(StoreUnavailable):
                task.search(unit(1)[0], 5)
            server.restore()
            assert task.search(unit(1)[0], 5).ids.tolist() == before

    def test_missing_client_raises_with_hint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pymilvus", None)
        with pytest.raises(StoreUnavailable, match=r"pip install 'cinestrata\[milvus\]'"):
            MilvusVectorStore(MilvusAddress("http://127.0.0.1:9")).place("a", 8)


def test_half_precision_is_transferred_bit_by_bit(unit: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """milvus-lite has no such field, so packing and unpacking of the client are tested without a server."""
    from pymilvus.client import entity_helper
    from pymilvus.client.field_data_extractors import decode_cell
    from pymilvus.client.prepare import Prepare
    from pymilvus.client.types import DataType
    from pymilvus.grpc_gen import schema_pb2

    server = StubClient()
    monkeypatch.setattr("pymilvus.MilvusClient", lambda *_, **__: server)
    MilvusPartitions(MilvusAddress("http://127.0.0.1:9")).upsert("x", "a", [{}] * 3, unit(3))
    stored = [row["vector"] for row in server.rows]
    assert {row.dtype for row in stored} == {np.dtype(np.float16)}
    field = schema_pb2.FieldData(type=DataType.FLOAT16_VECTOR, field_name="vector")
    cache: dict[int, list[bytes]] = {}
    info = {"name": "vector", "type": DataType.FLOAT16_VECTOR, "params": {"dim": 8}}
    for row in stored:
        entity_helper.pack_field_value_to_field_data(row, field, info, cache)
    entity_helper.flush_vector_bytes(field, cache)
    assert field.vectors.float16_vector == np.stack(stored).tobytes()
    back = [decode_cell(field, number, wrap_byte_vectors=True) for number in range(3)]
    assert np.array_equal(np.array([as_numbers(value) for value in back], np.float32), unit(3))
    request = Prepare.search_requests_with_expr(
        "x", "vector", {"metric_type": "IP", "params": {}}, 3, data=[stored[0]], expr="", round_decimal=-1
    )
    assert stored[0].tobytes() in request.SerializeToString()


@pytest.mark.parametrize(
    ("version", "half"),
    [("v2.3.5-lite", False), ("2.2.16", False), ("v2.4.0", True), ("v2.6.16", True), ("master-0af3", True)],
)
def test_half_precision_depends_on_server_version(
    version: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymilvus.MilvusClient", lambda *_, **__: StubClient(version))
    connection = MilvusPartitions(MilvusAddress("http://127.0.0.1:9")).connection
    with connection.request("connect"):
        assert connection.has_half_precision is half


def test_server_is_reached_by_uri_and_token(
    milvus_server: Milvus, tmp_path: Path, publish_task: Callable, unit: Callable
) -> None:
    uri: str | None = milvus_server.uri
    if isinstance(milvus_server, Lite):
        from milvus_lite.server_manager import server_manager_instance

        uri = server_manager_instance.start_and_get_uri(milvus_server.uri)
        assert uri is not None
    vectors = MilvusVectorStore(MilvusAddress(uri, token="root:Milvus", collection="by_address"))
    store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
    publish_task(store, "a", range(5))
    assert sorted(open_shard_of(store).search(unit(1)[0], 9).ids.tolist()) == list(range(5))


@pytest.mark.slow
def test_children_of_a_process_with_a_connection_are_not_aborted(tmp_path: Path) -> None:
    """The fork handlers of gRPC abort some children that close their files before they execute a program."""
    code = f"""
import os, subprocess
import index.milvus.milvus_connection
from pymilvus import MilvusClient
MilvusClient({str(tmp_path / "x.db")!r}).list_collections()
children = [subprocess.Popen(["sleep", "0.05"], preexec_fn=os.setsid).wait() for _ in range(150)]
os._exit(any(children))
"""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0


def test_partition_released_elsewhere_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_partition_names_are_distinct() -> None:
    names = ["tsk_1", "tsk 1", "tsk-1", "ü", "x" * 300, "x" * 301]
    made = [partition_name(name) for name in names]
    assert made[0] == "t_tsk_1"
    assert len(set(made)) == len(names)
    assert all(len(name) <= 255 and name.isascii() and name.isidentifier() for name in made)


@pytest.mark.parametrize("place", ["", "files", "milvus:", "milvus:a", "other:a/b", "milvus2:a/b"])
def test_place_of_other_store_raises(place: str) -> None:
    with pytest.raises(ShardMissing, match="not a place in Milvus"):
        split_place(place)
