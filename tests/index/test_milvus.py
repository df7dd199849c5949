"""What is Milvus' own: half-written rows, limits, lost servers, what is loaded, half precision on the wire."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from rich.console import Console
from rich.traceback import Traceback

from index.errors import ShardCorrupt, ShardMissing, StoreUnavailable
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.milvus import milvus_connection, milvus_partitions, milvus_shard, milvus_vector_store
from index.milvus.milvus_address import MilvusAddress
from index.milvus.milvus_connection import TimedClient
from index.milvus.milvus_partitions import MilvusPartitions
from index.milvus.milvus_rows import as_numbers, partition_name, row_key, segment_number, split_place
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.milvus.partition_cache import PartitionCache
from index.shard_store import ShardStore
from tests.index.test_vector_stores import Brute, opened
from tests.milvus import Lite, Milvus, fresh_milvus

pytest.importorskip("milvus_lite")


@pytest.fixture
def vectors(server: str, request: pytest.FixtureRequest) -> MilvusVectorStore:
    return MilvusVectorStore(MilvusAddress(server, collection=f"t{abs(hash(request.node.name))}"))


@pytest.fixture
def store(vectors: MilvusVectorStore, tmp_path: Path) -> ShardStore:
    return ShardStore(tmp_path / "index", remote=vectors, write_remote=True)


def rows(vectors: MilvusVectorStore, place: str) -> list[dict[str, Any]]:
    collection, partition = split_place(place)
    with vectors.partitions.connection.request("look") as client:
        client.load_collection(collection)
        found: list[dict[str, Any]] = client.query(
            collection, filter="id >= 0", output_fields=["id"], partition_names=[partition]
        )
    return found


def test_a_half_written_task_is_invisible_and_made_whole_by_the_next_attempt(
    store: ShardStore,
    write: Callable,
    lay_down: Callable,
    vectors: MilvusVectorStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(milvus_vector_store, "MAX_REQUEST_BYTES", 4 * 4 * 8)  # four rows at a time
    original, calls = TimedClient.__getattr__, []

    def dies(self: Any, name: str) -> Any:
        if name == "upsert":
            calls.append(name)
            if len(calls) == 3:
                raise KeyboardInterrupt
        return original(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(TimedClient, "__getattr__", dies)
        with pytest.raises(KeyboardInterrupt):
            write(store, "a", range(10))
    (place,) = {vectors.place("a", 8)}
    assert len(rows(vectors, place)) == 8
    assert IndexSnapshot.open(store).tasks == []
    lay_down(store, "a", range(10))
    assert len(rows(vectors, place)) == 10
    assert opened(store).count == 10
    assert audit(store).problems == []


def test_what_is_there_is_not_sent_again(
    store: ShardStore, write: Callable, vectors: MilvusVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(store, "a", range(10))
    original = TimedClient.__getattr__

    def never(self: Any, name: str) -> Any:
        assert name != "upsert"
        return original(self, name)

    monkeypatch.setattr(TimedClient, "__getattr__", never)
    write(store, "a", range(10))


def test_every_altered_vector_and_lost_row_is_named(
    store: ShardStore, lay_down: Callable, vectors: MilvusVectorStore, unit: Callable, milvus_server: Milvus
) -> None:
    shard = lay_down(store, "a", range(10)).shards["a"]
    collection, partition = split_place(shard.place)
    row = {
        "key": row_key(shard.id, 4),
        "id": 4,
        "shard": segment_number(shard.id),
        "vector": unit(1, 99)[0],
    }
    with vectors.partitions.connection.request("harm") as client:
        client.upsert(collection, [row], partition_name=partition)
    (said,) = audit(store).problems
    assert "altered" in said
    assert shard.id[:12] in said
    with vectors.partitions.connection.request("harm") as client:
        client.delete(collection, filter="id == 4", partition_name=partition)
    (said,) = audit(store).problems
    assert "has 9 of its 10 vectors" in said
    with pytest.raises(ShardCorrupt, match="has 9 of its 10"):
        store.check(shard, "rows")
    with pytest.raises(ShardMissing, match="no vector 4"):
        opened(store).vectors(np.array([3, 4]))
    with vectors.partitions.connection.request("harm") as client:
        if not isinstance(milvus_server, Lite):
            client.release_partitions(collection, [partition])
        client.drop_partition(collection, partition)
    vectors.close()
    snapshot = IndexSnapshot.open(store)
    assert snapshot.tasks == []
    assert "restore it from Milvus' backup" in snapshot.degraded["a"]


def test_a_partition_that_another_process_dropped_is_named_by_a_search(
    store: ShardStore, lay_down: Callable, vectors: MilvusVectorStore, unit: Callable, milvus_server: Milvus
) -> None:
    if isinstance(milvus_server, Lite):
        pytest.skip("milvus-lite finds nothing in a partition that is not there")
    shard = lay_down(store, "a", range(10)).shards["a"]
    task = opened(store)
    assert task.search(unit(1)[0], 1).ids.size == 1
    MilvusVectorStore(vectors.address).drop(shard.id, shard.place)
    with pytest.raises(ShardMissing, match="restore it from Milvus' backup"):
        task.search(unit(1)[0], 1)


def test_a_full_collection_is_followed_by_another(
    store: ShardStore,
    lay_down: Callable,
    vectors: MilvusVectorStore,
    unit: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(milvus_partitions, "MAX_PARTITIONS", 2)  # one of them is Milvus' own
    for number in range(3):
        lay_down(store, f"t{number}", [number], seed=number)
    places = {task: split_place(shard.place)[0][-1] for task, shard in store.manifest().shards.items()}
    assert places == {"t0": "0", "t1": "1", "t2": "2"}
    assert vectors.place("t1", 8).endswith("_1/t_t1"), "where it is already"
    for number in range(3):
        assert opened(store, f"t{number}").search(unit(1)[0], 3).ids.tolist() == [number]


def test_names_of_tasks_are_told_apart() -> None:
    names = ["tsk_1", "tsk 1", "tsk-1", "ü", "x" * 300, "x" * 301]
    made = [partition_name(name) for name in names]
    assert made[0] == "t_tsk_1"
    assert len(set(made)) == len(names)
    assert all(len(name) <= 255 and name.isascii() and name.isidentifier() for name in made)


@pytest.mark.parametrize("most", [4, 9])
def test_lists_that_are_too_long_for_one_question_are_asked_in_pieces(
    store: ShardStore,
    tmp_path: Path,
    write: Callable,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    unit: Callable,
) -> None:
    monkeypatch.setattr(milvus_shard, "MAX_LISTED_IDS", most)
    brute = ShardStore(tmp_path / "brute", remote=Brute(), write_remote=True)
    for each in (store, brute):
        release, shard = write(each, "a", range(30))
        each.publish(release=release, shards=[shard])
        each.delete([1, 2, 3, 7, 20, 21, 29])
    ours, theirs = opened(store), opened(brute)
    monkeypatch.setattr(milvus_shard, "MAX_HITS", 2 * most)
    for number, query in enumerate(unit(2, 4)):
        for k in (1, 3, 30):
            for exclude, among in (((), None), (range(number, 30, 4), None), ((5,), np.arange(0, 25, 2))):
                found, expected = (
                    ours.search(query, k, exclude, among),
                    theirs.search(query, k, exclude, among),
                )
                assert found.ids.tolist() == expected.ids.tolist()
                assert np.allclose(found.scores, expected.scores, atol=2e-6)
    many = unit(7, 6)
    for found, query in zip(ours.search_many(many, 3), many, strict=True):
        assert found.ids.tolist() == theirs.search(query, 3).ids.tolist()
    assert np.array_equal(ours.vectors(ours.ids), theirs.vectors(theirs.ids))


def test_more_equal_scores_than_one_answer_holds(
    store: ShardStore, adopt: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_shard, "MAX_LISTED_IDS", 8)
    release = adopt(store, "r")
    shard = store.write_shard(
        task="a",
        release=release.id,
        fingerprint="encoder of a",
        ids=np.arange(40)[::-1],
        vectors=np.tile(np.eye(8, dtype=np.float32)[:1], (40, 1)),
    )
    store.publish(release=release, shards=[shard])
    assert opened(store).search(np.ones(8, np.float32), 5, exclude=[1]).ids.tolist() == [0, 2, 3, 4, 5]


def test_a_young_shard_waits_for_every_replica_and_an_old_one_does_not(
    store: ShardStore, lay_down: Callable, unit: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = lay_down(store, "a", range(5)).shards["a"]
    asked: list[str] = []
    original = MilvusPartitions.search

    def search(self: MilvusPartitions, *given: Any) -> Any:
        asked.append(given[-1])
        return original(self, *given)

    monkeypatch.setattr(MilvusPartitions, "search", search)
    task = opened(store)
    task.search(unit(1)[0], 1)
    written = store.shard_folder(shard.id).stat().st_mtime
    monkeypatch.setattr(milvus_shard.time, "time", lambda: written + 61)
    task.search(unit(1)[0], 1)
    assert asked == ["Strong", "Bounded"]


class TestAServerThatIsLost:
    SECRET, TOKEN = "s3" + "cret", "t0" + "ken"  # in two pieces: a traceback shows this file too
    URI = f"http://somebody:{SECRET}@127.0.0.1:9"

    def test_it_is_named_without_its_secrets_and_not_asked_again_at_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        address = MilvusAddress(self.URI, token=f"{self.TOKEN}:{self.SECRET}", timeout=0.5)
        lost = MilvusVectorStore(address)
        with pytest.raises(
            StoreUnavailable, match=r"http://127\.0\.0\.1:9 .*CINESTRATA_MILVUS__URI"
        ) as first:
            lost.place("a", 8)
        monkeypatch.setattr("pymilvus.MilvusClient", None)  # would be noticed
        with pytest.raises(StoreUnavailable, match="did not answer a moment ago") as second:
            lost.place("a", 8)
        log = io.StringIO()  # as structlog's console shows an error: with the variables of every frame
        Console(file=log, width=10_000).print(
            Traceback.from_exception(first.type, first.value, first.tb, show_locals=True)
        )
        assert "StoreUnavailable" in log.getvalue()
        for text in (str(first.value), str(second.value), repr(address), caplog.text, log.getvalue()):
            assert self.SECRET not in text
            assert self.TOKEN not in text

    def test_one_that_does_not_know_the_token_is_told_from_one_that_is_away(self) -> None:
        class Denies(grpc.GenericRpcHandler):
            def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
                return grpc.unary_unary_rpc_method_handler(
                    lambda _, context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "who is this?")
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
        assert "who is this?" in str(denied.value)
        assert token not in str(denied.value)

    def test_a_task_in_it_is_degraded_and_the_others_are_served(
        self, tmp_path: Path, server: str, lay_down: Callable, unit: Callable
    ) -> None:
        root = tmp_path / "index"
        there = MilvusVectorStore(MilvusAddress(server, collection="lost"))
        lay_down(ShardStore(root), "files", range(5))
        lay_down(ShardStore(root, remote=there, write_remote=True), "away", range(10, 15))
        lost = ShardStore(root, remote=MilvusVectorStore(MilvusAddress("http://127.0.0.1:9", timeout=0.2)))
        snapshot = IndexSnapshot.open(lost)
        assert snapshot.tasks == ["files"]
        assert "127.0.0.1:9" in snapshot.degraded["away"]
        none = IndexSnapshot.open(ShardStore(root))
        assert none.tasks == ["files"]
        assert "set CINESTRATA_MILVUS__URI" in none.degraded["away"]
        mended = IndexSnapshot.open(ShardStore(root, remote=there), previous=snapshot)
        assert mended.degraded == {}

    def test_a_partition_that_is_lost_is_named_before_the_library_is_read(
        self, store: ShardStore, lay_down: Callable, vectors: MilvusVectorStore
    ) -> None:
        lay_down(store, "a", range(5))
        lay_down(store, "b", range(5, 9))
        shard = store.manifest().shards["a"]
        vectors.drop(shard.id, shard.place)
        snapshot = IndexSnapshot.open(store, max_verified_bytes=0)
        assert list(snapshot.degraded) == ["a"]
        assert "does not exist; restore it from Milvus' backup" in snapshot.degraded["a"]
        assert [entry.task for entry in snapshot.unverified_segments] == ["b"]

    def test_rows_of_an_orphan_are_forgotten_when_it_is_back(
        self, store: ShardStore, write: Callable, lay_down: Callable, vectors: MilvusVectorStore
    ) -> None:
        lay_down(store, "b", range(5, 9))
        _, shard = write(store, "a", range(5))
        long_ago = time.time() - 10**4
        folder = store.shard_folder(shard.id)
        os.utime(folder, (long_ago, long_ago))
        for lost in (None, MilvusVectorStore(MilvusAddress("http://127.0.0.1:9", timeout=0.2))):
            ShardStore(store.root, remote=lost).collect_garbage()
            assert folder.exists()
        store.collect_garbage()
        assert not folder.exists()
        assert not vectors.partitions.exists(*split_place(shard.place))

    def test_it_is_found_again_when_it_is_back(
        self, tmp_path: Path, lay_down: Callable, unit: Callable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(milvus_connection, "RETRY_SECONDS", 0)
        with fresh_milvus(tmp_path) as server:
            vectors = MilvusVectorStore(MilvusAddress(server.uri, timeout=2))
            store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
            lay_down(store, "a", range(5))
            task = opened(store)
            before = task.search(unit(1)[0], 5).ids.tolist()
            server.lose()
            with pytest.raises(StoreUnavailable):
                task.search(unit(1)[0], 5)
            server.find()
            assert task.search(unit(1)[0], 5).ids.tolist() == before

    def test_without_the_client_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "pymilvus", None)
        with pytest.raises(StoreUnavailable, match=r"pip install 'cinestrata\[milvus\]'"):
            MilvusVectorStore(MilvusAddress("http://127.0.0.1:9")).place("a", 8)


class StubClient:
    """A client of a server that counts how often partitions are loaded, and rejects queries of others."""

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


class TestLoaded:
    def test_those_that_were_used_longest_ago_go_first(self) -> None:
        server, held = StubClient(), PartitionCache(2)
        for name in ("a", "b", "a", "c"):
            with held.use(server, "x", name, whole=False):
                assert ("x", name) in server.loaded
        assert server.loaded == {("x", "a"), ("x", "c")}
        assert server.loads == 3

    def test_none_goes_that_is_in_use(self) -> None:
        server, held = StubClient(), PartitionCache(1)
        with held.use(server, "x", "a", whole=False), held.use(server, "x", "b", whole=False):
            assert len(server.loaded) == 2
        assert len(server.loaded) == 1

    def test_without_a_limit_all_stay(self) -> None:
        server, held = StubClient(), PartitionCache()
        for number in range(50):
            with held.use(server, "x", str(number), whole=False):
                pass
        assert len(server.loaded) == 50

    def test_many_threads_load_one_once(self) -> None:
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

    def test_one_that_another_process_released_is_loaded_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_half_precision_goes_over_the_wire_bit_by_bit(
    unit: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """milvus-lite has no such field, so the client's own packing and unpacking stand in for a server's."""
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
def test_only_servers_that_can_are_given_half_precision(
    version: str, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymilvus.MilvusClient", lambda *_, **__: StubClient(version))
    connection = MilvusPartitions(MilvusAddress("http://127.0.0.1:9")).connection
    with connection.request("connect"):
        assert connection.has_half_precision is half


@pytest.mark.parametrize("place", ["", "files", "milvus:", "milvus:a", "other:a/b", "milvus2:a/b"])
def test_a_place_of_another_store_is_refused_by_name(place: str) -> None:
    with pytest.raises(ShardMissing, match="no place in Milvus"):
        split_place(place)


def test_an_unknown_index_is_refused() -> None:
    with pytest.raises(ValueError, match="choose one of FLAT, IVF_SQ8, HNSW"):
        MilvusAddress("x.db", index="TREE")  # type: ignore[arg-type]


@pytest.mark.parametrize("index", ["IVF_SQ8", "HNSW"])
def test_an_approximate_index_finds_what_is_near(
    server: str, tmp_path: Path, lay_down: Callable, unit: Callable, index: Any
) -> None:
    vectors = MilvusVectorStore(MilvusAddress(server, collection=f"near_{index}", index=index))
    store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
    lay_down(store, "a", range(50))
    stored = unit(50)
    found = [opened(store).search(stored[id], 1).ids.tolist() == [id] for id in range(0, 50, 5)]
    assert sum(found) >= 9


def test_a_server_is_reached_by_its_address(
    milvus_server: Milvus, tmp_path: Path, lay_down: Callable, unit: Callable
) -> None:
    uri: str | None = milvus_server.uri
    if isinstance(milvus_server, Lite):
        from milvus_lite.server_manager import server_manager_instance

        uri = server_manager_instance.start_and_get_uri(milvus_server.uri)
        assert uri is not None
    vectors = MilvusVectorStore(MilvusAddress(uri, token="root:Milvus", collection="by_address"))
    store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
    lay_down(store, "a", range(5))
    assert sorted(opened(store).search(unit(1)[0], 9).ids.tolist()) == list(range(5))


class _Strict:
    """milvus-lite as strict as a server: partitions are loaded one by one, asked only then, and dropped only after."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.loaded: set[tuple[str, str]] = set()
        self.most = 0

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
        assert self._client.list_indexes(collection), "Milvus loads nothing without an index"
        self._client.load_collection(collection)
        self.loaded |= {(collection, partition) for partition in partitions}
        self.most = max(self.most, len(self.loaded))

    def release_partitions(self, collection: str, partitions: list[str]) -> None:
        self.loaded -= {(collection, partition) for partition in partitions}

    def drop_partition(self, collection: str, partition: str) -> None:
        assert (collection, partition) not in self.loaded, "Milvus refuses to drop what is loaded"
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
        found = self._client.query(collection, partition_names=partition_names, **given)
        for row in found:
            if "vector" in row:
                row["vector"] = [np.array(row["vector"], np.float16).tobytes()]
        return found

    def delete(self, collection: str, partition_name: str, **given: Any) -> Any:
        self._require(collection, [partition_name])
        return self._client.delete(collection, partition_name=partition_name, **given)

    def upsert(self, collection: str, data: list[dict[str, Any]], **given: Any) -> Any:
        assert all(row["vector"].dtype == np.float16 for row in data)
        return self._client.upsert(
            collection, [{**row, "vector": row["vector"].astype(np.float32)} for row in data], **given
        )

    def release(self) -> None:
        """As another process would."""
        self.loaded.clear()

    def _require(self, collection: str, partitions: list[str]) -> None:
        from pymilvus import MilvusException

        if not {(collection, partition) for partition in partitions} <= self.loaded:
            raise MilvusException(201, "partition not loaded")


class _Real:
    """A server, asked what it holds."""

    def __init__(self, vectors: MilvusVectorStore) -> None:
        self._vectors = vectors

    @property
    def loaded(self) -> set[tuple[str, str]]:
        with self._vectors.partitions.connection.request("tell") as client:
            return {
                (collection, partition)
                for collection in client.list_collections()
                if collection.startswith("strict_")
                for partition in client.list_partitions(collection)
                if client.get_load_state(collection, partition)["state"].name == "Loaded"
            }

    def release(self) -> None:
        """As another process would."""
        for collection, partition in self.loaded:
            with self._vectors.partitions.connection.request("release") as client:
                client.release_partitions(collection, [partition])


def test_on_a_server_partitions_are_loaded_by_use_and_vectors_have_half_precision(
    milvus_server: Milvus,
    tmp_path: Path,
    lay_down: Callable,
    write: Callable,
    unit: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = MilvusVectorStore(MilvusAddress(milvus_server.uri, collection="strict", max_loaded=2))
    strict: _Strict | _Real = _Real(vectors)
    if isinstance(milvus_server, Lite):
        from pymilvus import MilvusClient

        strict = stand_in = _Strict(MilvusClient(milvus_server.uri))
        connection = vectors.partitions.connection
        with connection.request("connect"):
            connection.is_lite, connection.has_half_precision = False, True
        monkeypatch.setattr(TimedClient, "__getattr__", lambda self, name: stand_in.get(name))
    store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
    for number in range(4):
        lay_down(store, f"t{number}", range(10 * number, 10 * number + 5), seed=number)
    _, left = write(store, "left", range(100, 105))
    for number in (0, 3, 1, 2, 0):
        (query,), rows = unit(1, 9), unit(5, number)
        found = opened(store, f"t{number}").search(query, 5)
        expected = 10 * number + np.argsort(
            -(rows @ query.astype(np.float16).astype(np.float32)), kind="stable"
        )
        assert found.ids.tolist() == expected.tolist()
        assert np.allclose(found.scores, np.sort(rows @ query)[::-1], atol=1e-3)
        assert np.array_equal(opened(store, f"t{number}").vectors(np.arange(5) + 10 * number), rows)
    if isinstance(strict, _Strict):
        assert strict.most == 3, "two, and the one that is in use while another goes"
    assert len(strict.loaded) == 2
    long_ago = time.time() - 10**4
    os.utime(store.shard_folder(left.id), (long_ago, long_ago))
    store.collect_garbage()
    assert not vectors.partitions.exists(*split_place(left.place))
    assert audit(store).problems == []
    strict.release()
    assert opened(store, "t1").search(unit(1)[0], 9).ids.size == 5


def test_a_manifest_says_where_vectors_are_and_only_then_needs_a_newer_version(
    store: ShardStore, lay_down: Callable
) -> None:
    lay_down(ShardStore(store.root), "files", range(3))
    plain = store.manifest_path.read_text()
    assert json.loads(plain)["schema"] == 2
    assert "place" not in plain
    manifest = lay_down(store, "away", range(5, 8))
    text = store.manifest_path.read_text()
    assert json.loads(text)["schema"] == 3
    assert Manifest.loads(text) == manifest
    assert manifest.shards["files"].place == ""
    assert manifest.shards["away"].place.startswith("milvus:")
    assert set(manifest.shards["away"].files) == {"ids.npy", "shard.json", "vectors.json"}


def test_many_threads_search_at_once(store: ShardStore, lay_down: Callable, unit: Callable) -> None:
    for number in range(3):
        lay_down(store, f"t{number}", range(20 * number, 20 * number + 20), seed=number)
    queries, tasks = unit(4, 5), [opened(store, f"t{number}") for number in range(3)]
    expected = [[task.search(query, 5).ids.tolist() for query in queries] for task in tasks]
    found: list[list[list[int]]] = [[] for _ in tasks * 2]

    def work(place: int) -> None:
        found[place] = [tasks[place % 3].search(query, 5).ids.tolist() for query in queries]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected * 2


_KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from index.shard_store import ShardStore
from index.milvus.milvus_address import MilvusAddress
from index.milvus.milvus_vector_store import MilvusVectorStore
root = Path(sys.argv[1])
vectors = MilvusVectorStore(MilvusAddress(sys.argv[2]))
store = ShardStore(root / "index", remote=vectors, write_remote=True)
staged = store.stage()
(staged / "release.json").write_text("r")
release = store.adopt_release(staged)
def write(task, first):
    rows = np.tile(np.eye(8, dtype=np.float32), (3, 1))
    return store.write_shard(
        task=task, release=release.id, fingerprint=f"encoder of {task}", ids=np.arange(first, first + 24), vectors=rows
    )
store.publish(release=release, shards=[write("a", 0)])
write("b", 100)
os.kill(os.getpid(), 9)
"""


def test_a_killed_writer_loses_nothing_that_was_published(tmp_path: Path) -> None:
    with fresh_milvus(tmp_path) as server:
        died = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), server.uri], capture_output=True)
        assert died.returncode == -9, died.stderr.decode()[-2000:]
        store = ShardStore(
            tmp_path / "index", remote=MilvusVectorStore(MilvusAddress(server.uri)), write_remote=True
        )
        assert IndexSnapshot.open(store).tasks == ["a"]
        assert audit(store).problems == []
        assert opened(store).search(np.eye(8, dtype=np.float32)[2], 3).ids.tolist() == [2, 10, 18]
