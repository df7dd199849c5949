"""Tasks whose vectors are all deleted: compaction removes the vectors from disk, and the task stays published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.arrays import moment_ids
from index.errors import ShardInvalid, ShardMissing
from index.files.manifest_format import Manifest
from index.files.store_folder import list_manifest_files
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore
from index.store_options import AnnPolicy
from tests.index.disk_faults import Crash, fail_at
from tests.index.published_shards import age, append

DIM = 8


@pytest.fixture(params=["faiss", "milvus"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ShardStore:
    if request.param == "faiss":
        return ShardStore(tmp_path / "index")
    return ShardStore(tmp_path / "index", remote=request.getfixturevalue("milvus"), write_remote=True)


def _delete_and_compact(store: ShardStore, task: str, ids: range) -> Manifest:
    store.delete(ids, task=task)
    return store.compact(task)


def _collect_garbage_hours_later(store: ShardStore) -> None:
    age(*store.folders())
    store.collect_garbage()


def _answers(snapshot: IndexSnapshot, task: str, queries: np.ndarray) -> list[tuple[bytes, bytes]]:
    shard = snapshot.shard(task, fingerprint=f"encoder of {task}")
    return [(hits.ids.tobytes(), hits.scores.tobytes()) for hits in shard.search_many(queries, 7)]


def _files_with_vectors(root: Path, vectors: np.ndarray) -> list[Path]:
    """List the files below a folder that contain one of these vectors, in either precision."""
    rows = [row.astype(kind).tobytes() for row in vectors for kind in (np.float16, np.float32)]
    files = [path for path in root.rglob("*") if path.is_file()]
    return [path for path in files if any(row in path.read_bytes() for row in rows)]


def test_compacting_deleted_task_removes_its_vectors_only(
    store: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(30), seed=1)
    moments = moment_ids(3, 6)
    append(store, moments, unit(6, 2))
    publish_task(store, "b", range(100, 140), seed=3)
    gone = np.concatenate([unit(30, 1), unit(6, 2)])
    local = not store.manifest().shards["a"].place
    assert bool(_files_with_vectors(store.root, gone)) is local, "the search for bytes works"
    before, queries = IndexSnapshot.open(store), unit(9, 4)
    seen = _answers(before, "a", queries)
    others = _answers(before, "b", queries)
    store.delete(range(30))
    manifest = store.compact("a")
    assert (manifest.live_count("a"), manifest.deleted_count("a"), manifest.appended) == (0, 0, {})
    store.collect_garbage()
    assert _answers(before, "a", queries) == seen, "readers of the old generation are unaffected"
    _collect_garbage_hours_later(store)
    assert _files_with_vectors(store.root, gone) == []
    assert {folder.name for folder in store.folders()} == manifest.folder_ids()
    for previous in (before, None):
        after = IndexSnapshot.open(store, previous=previous)
        assert (after.degraded, after.tasks) == ({}, ["a", "b"])
        assert _answers(after, "a", queries) == [(b"", b"")] * 9
        assert _answers(after, "b", queries) == others
        after = IndexSnapshot.open(store, previous=after)  # reused like the others
        assert _answers(after, "a", queries) == [(b"", b"")] * 9
    report = audit(store)
    assert (report.problems, report.leftovers, report.ids["a"].tolist()) == ([], [], [])
    copied = {name.split("/")[1] for name in list_manifest_files(store, manifest)}
    assert copied == manifest.folder_ids()
    assert store.compact("a") == manifest, "compaction is idempotent"


def test_compacting_deleted_task_drops_its_milvus_partition(
    milvus: MilvusVectorStore, tmp_path: Path, publish_task: Callable
) -> None:
    store = ShardStore(tmp_path / "index", remote=milvus, write_remote=True)
    publish_task(store, "a", range(20))
    publish_task(store, "b", range(100, 120))
    place = store.manifest().shards["a"].place.partition(":")[2]
    collection, partition = place.split("/")
    _delete_and_compact(store, "a", range(20))
    assert milvus.partitions.exists(collection, partition), "older generations still use it"
    _collect_garbage_hours_later(store)
    assert not milvus.partitions.exists(collection, partition)
    assert milvus.partitions.count(collection, "t_b", "id >= 0") == 20
    assert audit(store).problems == []


def test_clear_empties_damaged_or_unreachable_shard(
    tmp_path: Path, milvus: MilvusVectorStore, publish_task: Callable
) -> None:
    """A damaged shard, and one on a server that is not configured."""
    store = ShardStore(tmp_path / "index")
    publish_task(store, "a", range(5))
    store.delete(range(5))
    (store.shard_folder(store.manifest().shards["a"].id) / "vectors.faiss").write_bytes(b"")
    assert IndexSnapshot.open(store).degraded.keys() == {"a"}
    store.compact("a")
    assert (IndexSnapshot.open(store).degraded, audit(store).problems) == ({}, [])
    away = ShardStore(tmp_path / "away", remote=milvus, write_remote=True)
    publish_task(away, "a", range(5))
    away.delete(range(5))
    ShardStore(away.root).compact("a")
    assert (IndexSnapshot.open(ShardStore(away.root)).degraded, audit(away).problems) == ({}, [])
    _collect_garbage_hours_later(ShardStore(away.root))
    assert len(away.folders()) == 3, "the folder stays until its rows can be dropped"
    _collect_garbage_hours_later(away)
    assert len(away.folders()) == 2


def test_crash_while_emptying_leaves_old_or_new_generation(
    store: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(6), seed=1)
    publish_task(store, "b", range(10, 16), seed=2)
    old, queries = store.delete(range(6)), unit(3, 4)
    others = _answers(IndexSnapshot.open(store), "b", queries)
    number, new = 0, None
    while new is None:
        number += 1
        try:
            with fail_at(number):
                store.compact("a")
        except Crash:
            pass
        else:
            break
        now = store.manifest()
        snapshot = IndexSnapshot.open(store)
        assert (snapshot.degraded, audit(store).problems) == ({}, [])
        assert _answers(snapshot, "a", queries) == [(b"", b"")] * 3
        assert _answers(snapshot, "b", queries) == others
        if now != old:
            assert (now.shards["a"].count, now.tombstones) == (0, {})
            new = now
    assert number > 5
    assert new is not None, "the last call makes the replacement durable"
    assert store.compact("a") == new
    _collect_garbage_hours_later(store)
    assert {folder.name for folder in store.folders()} == new.folder_ids()


def test_empty_shard_returns_no_hits(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    publish_task(store, "a", range(4))
    _delete_and_compact(store, "a", range(4))
    shard = IndexSnapshot.open(store).shard("a", fingerprint="encoder of a")
    (query,) = unit(1)
    assert (shard.count, shard.dim, shard.ids.tolist(), shard.is_remote) == (0, DIM, [], False)
    assert (shard.ids.dtype, shard.search(query, 3).ids.dtype) == (np.int64, np.int64)
    assert shard.search(query, 3, exclude=[1], include=np.array([2])).scores.dtype == np.float32
    assert len(shard.search_many(unit(5), 2)) == 5
    assert shard.search_many(unit(5)[:0], 2) == []
    assert shard.vectors(np.empty(0, np.int64)).shape == (0, DIM)
    with pytest.raises(ShardMissing, match="no vector 3"):
        shard.vectors(np.array([3]))
    for wrong in (query[:-1], query * np.nan):
        with pytest.raises(ValueError, match="must be 8 finite numbers"):
            shard.search(wrong, 1)
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        shard.search(query, 0)


def test_append_replaces_empty_segment(
    store: ShardStore, publish_task: Callable, write: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(4))
    _delete_and_compact(store, "a", range(4))
    release, shard = write(store, "a", range(50, 54))
    with pytest.raises(ShardInvalid, match="never replaced"):  # a shard is published once
        store.publish(release=release, shards=[shard])
    manifest = append(store, np.arange(3), unit(3, 9))  # the IDs are free again
    assert (len(manifest.segments("a")), manifest.live_count("a")) == (1, 3)
    shard = IndexSnapshot.open(store).shard("a", fingerprint="encoder of a")
    assert np.array_equal(shard.vectors(np.arange(3)), unit(3, 9))
    assert audit(store).problems == []
    _delete_and_compact(store, "a", range(3))
    again = publish_task(store, "new", range(4), seed=5)
    assert list(again.shards) == ["a", "new"]
    assert IndexSnapshot.open(store).shard("new", fingerprint="encoder of new").count == 4


def test_move_empties_deleted_task_and_skips_empty_one(
    tmp_path: Path, milvus: MilvusVectorStore, publish_task: Callable, write: Callable
) -> None:
    store = ShardStore(tmp_path / "index")
    publish_task(store, "a", range(4))
    publish_task(store, "b", range(10, 14))
    store.delete(range(4))
    release, shard = write(store, "b", [10, 11], seed=7)
    store.publish(release=release, shards=[shard], upgrades=True, partial=True)
    there = ShardStore(store.root, remote=milvus, write_remote=True)
    manifest = there.move("a")
    assert (manifest.shards["a"].count, manifest.shards["a"].place) == (0, "")
    assert there.move("a") == manifest
    shards = there.move("b").shards
    assert [shards[key].place[:7] for key in there.manifest().keys_of("b")] == ["milvus:", "milvus:"]
    live = audit(there)
    assert live.problems == []
    assert [live.ids[key].tolist() for key in shards if key != "a"] == [[12, 13], [10, 11]]


def test_compacting_deleted_task_removes_its_structure(
    tmp_path: Path, publish_vectors: Callable, unit: Callable
) -> None:
    """The structure and its queries are in the folder that is removed."""
    store = ShardStore(tmp_path / "index", policy=AnnPolicy(exact_rows=500, kinds=("sq8",), target=0.5))
    vectors, queries = unit(1200, 1), unit(150, 2)
    published = publish_vectors(store, range(1200), vectors, queries)
    assert {"queries.npy", "search.faiss"} < set(published.shards["a"].files)
    manifest = _delete_and_compact(store, "a", range(1200))
    _collect_garbage_hours_later(store)
    assert set(manifest.shards["a"].files) == {"ids.npy", "shard.json"}
    assert _files_with_vectors(store.root, np.concatenate([vectors[:20], queries])) == []
