"""The vector store in Milvus: incomplete writes, limits of requests, loaded partitions, consistency."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.errors import ShardCorrupt, ShardMissing
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.milvus import milvus_partitions, milvus_vector_store
from index.milvus.milvus_connection import TimedClient
from index.milvus.milvus_partitions import MilvusPartitions, row_key, segment_number, split_place
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore
from index.store_options import MilvusAddress
from tests.index.brute_force_store import BruteForceVectorStore
from tests.index.published_shards import age, open_shard_of
from tests.milvus import Lite, Milvus, fresh_milvus


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


pytest.importorskip("milvus_lite")


def rows(milvus: MilvusVectorStore, place: str) -> list[dict[str, Any]]:
    collection, partition = split_place(place)
    with milvus.partitions.connection.request("look") as client:
        client.load_collection(collection)
        stored: list[dict[str, Any]] = client.query(
            collection, filter="id >= 0", output_fields=["id"], partition_names=[partition]
        )
    return stored


def test_incomplete_task_is_invisible_and_completed_by_next_attempt(
    store: ShardStore,
    write: Callable,
    publish_task: Callable,
    milvus: MilvusVectorStore,
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

    monkeypatch.setattr(TimedClient, "__getattr__", dies)
    with pytest.raises(KeyboardInterrupt):
        write(store, "a", range(10))
    (place,) = {milvus.place("a", 8)}
    assert len(rows(milvus, place)) == 8
    assert IndexSnapshot.open(store).tasks == []
    publish_task(store, "a", range(10))
    assert len(rows(milvus, place)) == 10
    assert open_shard_of(store).count == 10
    assert audit(store).problems == []
    sent = len(calls)
    write(store, "a", range(10))
    assert len(calls) == sent, "stored rows are not sent again"


def test_audit_reports_altered_and_lost_rows(
    store: ShardStore,
    publish_task: Callable,
    milvus: MilvusVectorStore,
    unit: Callable,
    milvus_server: Milvus,
) -> None:
    shard = publish_task(store, "a", range(10)).shards["a"]
    collection, partition = split_place(shard.place)
    keys = {"key": row_key(shard.id, 4), "id": 4, "shard": segment_number(shard.id)}
    row = {**keys, "vector": unit(1, 99)[0]}
    with milvus.partitions.connection.request("harm") as client:
        client.upsert(collection, [row], partition_name=partition)
    (problem,) = audit(store).problems
    assert "altered" in problem
    assert shard.id[:12] in problem
    with milvus.partitions.connection.request("harm") as client:
        client.delete(collection, filter="id == 4", partition_name=partition)
    (problem,) = audit(store).problems
    assert "has 9 of its 10 vectors" in problem
    with pytest.raises(ShardCorrupt, match="has 9 of its 10"):
        store.check(shard, "rows")
    with pytest.raises(ShardMissing, match="no vector 4"):
        open_shard_of(store).vectors(np.array([3, 4]))
    with milvus.partitions.connection.request("harm") as client:
        if not isinstance(milvus_server, Lite):
            client.release_partitions(collection, [partition])
        client.drop_partition(collection, partition)
    milvus.close()
    snapshot = IndexSnapshot.open(store)
    assert snapshot.tasks == []
    assert "restore it from Milvus' backup" in snapshot.degraded["a"]


def test_search_of_dropped_partition_raises(
    store: ShardStore,
    publish_task: Callable,
    milvus: MilvusVectorStore,
    unit: Callable,
    milvus_server: Milvus,
) -> None:
    if isinstance(milvus_server, Lite):
        pytest.skip("milvus-lite finds nothing in a partition that is not there")
    shard = publish_task(store, "a", range(10)).shards["a"]
    task = open_shard_of(store)
    assert task.search(unit(1)[0], 1).ids.size == 1
    MilvusVectorStore(milvus.address).drop(shard.id, shard.place)
    with pytest.raises(ShardMissing, match="restore it from Milvus' backup"):
        task.search(unit(1)[0], 1)


@pytest.mark.slow
def test_full_collection_is_followed_by_another(
    store: ShardStore,
    publish_task: Callable,
    milvus: MilvusVectorStore,
    unit: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(milvus_partitions, "MAX_PARTITIONS", 2)  # one of them is the default partition
    for number in range(3):
        publish_task(store, f"t{number}", [number], seed=number)
    collections = {task: split_place(shard.place)[0][-1] for task, shard in store.manifest().shards.items()}
    assert collections == {"t0": "0", "t1": "1", "t2": "2"}
    assert milvus.place("t1", 8).endswith("_1/t_t1"), "its present collection"
    for number in range(3):
        assert open_shard_of(store, f"t{number}").search(unit(1)[0], 3).ids.tolist() == [number]


@pytest.mark.slow
@pytest.mark.parametrize("most", [4, 9])
def test_long_id_lists_are_split_into_several_searches(
    store: ShardStore,
    tmp_path: Path,
    write: Callable,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    unit: Callable,
) -> None:
    monkeypatch.setattr(milvus_vector_store, "MAX_LISTED_IDS", most)
    brute = ShardStore(tmp_path / "brute", remote=BruteForceVectorStore(), write_remote=True)
    for each in (store, brute):
        release, shard = write(each, "a", range(30))
        each.publish(release=release, shards=[shard])
        each.delete([1, 2, 3, 7, 20, 21, 29])
    ours, theirs = open_shard_of(store), open_shard_of(brute)
    monkeypatch.setattr(milvus_vector_store, "MAX_HITS", 2 * most)
    for number, query in enumerate(unit(2, 4)):
        for k in (1, 3, 30):
            for exclude, among in (((), None), (range(number, 30, 4), None), ((5,), np.arange(0, 25, 2))):
                hits, expected = (each.search(query, k, exclude, among) for each in (ours, theirs))
                assert hits.ids.tolist() == expected.ids.tolist()
                assert np.allclose(hits.scores, expected.scores, atol=2e-6)
    many = unit(7, 6)
    for hits, query in zip(ours.search_many(many, 3), many, strict=True):
        assert hits.ids.tolist() == theirs.search(query, 3).ids.tolist()
    assert np.array_equal(ours.vectors(ours.ids), theirs.vectors(theirs.ids))


def test_more_ties_than_one_search_returns_are_ranked_exactly(
    store: ShardStore, publish_vectors: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_vector_store, "MAX_LISTED_IDS", 8)
    publish_vectors(store, range(39, -1, -1), np.tile(np.eye(8, dtype=np.float32)[:1], (40, 1)))
    assert open_shard_of(store).search(np.ones(8, np.float32), 5, exclude=[1]).ids.tolist() == [0, 2, 3, 4, 5]


def test_recent_segment_is_searched_with_strong_consistency(
    store: ShardStore, publish_task: Callable, unit: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = publish_task(store, "a", range(5)).shards["a"]
    levels: list[str] = []
    original = MilvusPartitions.search

    def search(self: MilvusPartitions, *given: Any) -> Any:
        levels.append(given[-1])
        return original(self, *given)

    monkeypatch.setattr(MilvusPartitions, "search", search)
    task = open_shard_of(store)
    task.search(unit(1)[0], 1)
    written = store.shard_folder(shard.id).stat().st_mtime
    monkeypatch.setattr(milvus_vector_store.time, "time", lambda: written + 121)
    task.search(unit(1)[0], 1)
    assert levels == ["Strong", "Bounded"]


@pytest.mark.parametrize("index", ["IVF_SQ8", "HNSW"])
def test_approximate_index_returns_nearest(
    server: str, tmp_path: Path, publish_task: Callable, unit: Callable, index: Any
) -> None:
    vectors = MilvusVectorStore(MilvusAddress(server, collection=f"near_{index}", index=index))
    store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
    publish_task(store, "a", range(50))
    stored = unit(50)
    is_first = [open_shard_of(store).search(stored[id], 1).ids.tolist() == [id] for id in range(0, 50, 5)]
    assert sum(is_first) >= 9


class ServerState:
    """The partitions that a real server has loaded."""

    def __init__(self, vectors: MilvusVectorStore) -> None:
        self._connection = vectors.partitions.connection

    @property
    def loaded(self) -> set[tuple[str, str]]:
        with self._connection.request("list the loaded partitions") as client:
            return {
                (collection, partition)
                for collection in client.list_collections()
                if collection.startswith("strict_")
                for partition in client.list_partitions(collection)
                if client.get_load_state(collection, partition)["state"].name == "Loaded"
            }

    def release_all(self) -> None:
        """Release all partitions, like another process."""
        for collection, partition in self.loaded:
            with self._connection.request("release") as client:
                client.release_partitions(collection, [partition])


def test_server_loads_partitions_on_use_and_stores_half_precision(
    milvus_server: Milvus,
    tmp_path: Path,
    publish_task: Callable,
    write: Callable,
    unit: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = MilvusVectorStore(MilvusAddress(milvus_server.uri, collection="strict"))
    server: StrictClient | ServerState = ServerState(vectors)
    if isinstance(milvus_server, Lite):
        from pymilvus import MilvusClient

        server = strict = StrictClient(MilvusClient(milvus_server.uri))
        connection = vectors.partitions.connection
        with connection.request("connect"):
            connection.is_lite, connection.has_half_precision = False, True
        monkeypatch.setattr(TimedClient, "__getattr__", lambda self, name: strict.get(name))
    store = ShardStore(tmp_path / "index", remote=vectors, write_remote=True)
    for number in range(4):
        publish_task(store, f"t{number}", range(10 * number, 10 * number + 5), seed=number)
    _, left = write(store, "left", range(100, 105))
    for number in (0, 3, 1, 2, 0):
        (query,), rows = unit(1, 9), unit(5, number)
        hits = open_shard_of(store, f"t{number}").search(query, 5)
        scores = rows @ query.astype(np.float16).astype(np.float32)
        assert hits.ids.tolist() == (10 * number + np.argsort(-scores, kind="stable")).tolist()
        assert np.allclose(hits.scores, np.sort(rows @ query)[::-1], atol=1e-3)
        assert np.array_equal(open_shard_of(store, f"t{number}").vectors(np.arange(5) + 10 * number), rows)
    assert split_place(left.place) in server.loaded
    age(store.shard_folder(left.id))
    store.collect_garbage()
    assert not vectors.partitions.exists(*split_place(left.place))
    assert split_place(left.place) not in server.loaded
    assert audit(store).problems == []
    server.release_all()
    assert open_shard_of(store, "t1").search(unit(1)[0], 9).ids.size == 5


_KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from index.shard_store import ShardStore
from index.store_options import MilvusAddress
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


@pytest.mark.slow
def test_killed_milvus_writer_loses_no_publication(tmp_path: Path) -> None:
    with fresh_milvus(tmp_path) as server:
        died = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), server.uri], capture_output=True)
        assert died.returncode == -9, died.stderr.decode()[-2000:]
        store = ShardStore(
            tmp_path / "index", remote=MilvusVectorStore(MilvusAddress(server.uri)), write_remote=True
        )
        assert IndexSnapshot.open(store).tasks == ["a"]
        assert audit(store).problems == []
        assert open_shard_of(store).search(np.eye(8, dtype=np.float32)[2], 3).ids.tolist() == [2, 10, 18]
