"""One set of tests for three vector stores: brute force in numpy, FAISS files, and Milvus. Results must be equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.errors import ShardCorrupt, ShardMissing
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore
from tests.index.brute_force_store import BruteForceVectorStore
from tests.index.published_shards import age, append, open_shard_of

pytest.importorskip("milvus_lite")

DIM = 8
CLOSE = 2e-6  # error of eight products of half-precision numbers


@pytest.fixture(params=["brute", "faiss", "milvus"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ShardStore:
    """An empty store, with each of the three vector stores."""
    if request.param == "faiss":
        return ShardStore(tmp_path / "index")
    remote = BruteForceVectorStore() if request.param == "brute" else request.getfixturevalue("milvus")
    return ShardStore(tmp_path / "index", remote=remote, write_remote=True)


def exact(rows: dict[int, np.ndarray], query: np.ndarray, k: int) -> list[int]:
    """Find the k best IDs in plain Python."""
    scores = {
        id: round(float(sum(a * b for a, b in zip(row, query, strict=True))), 5) for id, row in rows.items()
    }
    return sorted(scores, key=lambda id: (-scores[id], id))[:k]


def test_search_returns_nearest_vectors(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    publish_task(store, "a", range(100, 160), seed=3)
    rows = dict(zip(range(100, 160), unit(60, 3), strict=True))
    task = open_shard_of(store)
    assert (task.count, task.dim, task.ids.tolist()) == (60, DIM, list(range(100, 160)))
    for query in unit(5, 9):
        hits = task.search(query, 7)
        assert hits.ids.tolist() == exact(rows, query, 7)
        assert np.allclose(hits.scores, [rows[id] @ query for id in hits.ids.tolist()], atol=CLOSE)
        assert (hits.ids.dtype, hits.scores.dtype) == (np.int64, np.float32)


def test_ties_are_ordered_by_id(store: ShardStore, publish_vectors: Callable) -> None:
    one, two, worse = np.eye(DIM, dtype=np.float32)[:3]
    vectors = np.stack([one, worse, one, two, one, one, two])
    publish_vectors(store, [70, 5, 30, 2, 50, 10, 1], vectors)
    task = open_shard_of(store)
    for k in range(1, 8):
        assert task.search(one + two / 2, k).ids.tolist() == [10, 30, 50, 70, 1, 2, 5][:k]


def test_large_k_returns_all_vectors(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    publish_task(store, "a", range(9))
    (query,) = unit(1, 4)
    for k in (9, 10, 1000, 16_383, 16_384, 10**6):
        assert open_shard_of(store).search(query, k).ids.tolist() == exact(dict(enumerate(unit(9))), query, 9)


def test_search_many_equals_single_searches(
    store: ShardStore, publish_vectors: Callable, unit: Callable
) -> None:
    equal = np.tile(np.eye(DIM, dtype=np.float32)[:1], (12, 1))
    vectors = np.concatenate([unit(20), equal])
    publish_vectors(store, range(32), vectors)
    task, queries = open_shard_of(store), np.concatenate([unit(4, 3), np.eye(DIM, dtype=np.float32)[:2]])
    together = task.search_many(queries, 5, exclude=[3], include=np.arange(1, 31))
    for query, hits in zip(queries, together, strict=True):
        alone = task.search(query, 5, exclude=[3], include=np.arange(1, 31))
        assert hits.ids.tolist() == alone.ids.tolist()
        assert np.allclose(hits.scores, alone.scores, atol=CLOSE)
    assert task.search_many(queries[:0], 5) == []


def test_exclude_and_include_limit_results(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    publish_task(store, "a", range(40))
    task, rows, (query,) = open_shard_of(store), dict(enumerate(unit(40))), unit(1, 5)
    left = {id: row for id, row in rows.items() if id % 3}
    assert task.search(query, 8, exclude=range(0, 40, 3)).ids.tolist() == exact(left, query, 8)
    some = np.array([3, 9, 12, 13, 999, 38, -1])
    few = {id: rows[id] for id in (3, 12, 38)}
    assert task.search(query, 8, exclude=[9, 13, 777], include=some).ids.tolist() == exact(few, query, 8)
    for none in (task.search(query, 3, include=np.array([999])), task.search(query, 3, exclude=range(40))):
        assert (none.ids.tolist(), none.scores.tolist()) == ([], [])
        assert (none.ids.dtype, none.scores.dtype) == (np.int64, np.float32)


def test_vectors_returns_rounded_vectors(store: ShardStore, publish_vectors: Callable) -> None:
    vectors = np.random.default_rng(1).normal(size=(30, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    publish_vectors(store, range(30), vectors)
    task = open_shard_of(store)
    wanted = np.array([7, 29, 0, 7])
    assert np.array_equal(task.vectors(wanted), vectors[wanted].astype(np.float16).astype(np.float32))
    assert task.vectors(np.empty(0, np.int64)).shape == (0, DIM)
    with pytest.raises(ShardMissing, match="no vector 30"):
        task.vectors(np.array([3, 30]))


def test_search_raises_for_invalid_query(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    publish_task(store, "a", range(3))
    task, (query,) = open_shard_of(store), unit(1)
    for wrong, k in ((query, 0), (query[:-1], 3), (query * np.nan, 3)):
        for search, queries in ((task.search, wrong), (task.search_many, wrong[None])):
            reason = f"a query of task a must be {DIM} finite numbers" if k else "k must be at least 1, not 0"
            with pytest.raises(ValueError, match=reason):
                search(queries, k)
    with pytest.raises(ValueError, match="finite numbers"):
        task.search_many(query, 3)


def test_deleted_ids_stay_visible_in_older_generation(
    store: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(20))
    before, (query,) = open_shard_of(store), unit(1, 6)
    rows = dict(enumerate(unit(20)))
    best = exact(rows, query, 3)
    store.delete(best[:2])
    after = open_shard_of(store)
    left = {id: row for id, row in rows.items() if id not in best[:2]}
    assert (before.count, after.count) == (20, 18)
    assert before.search(query, 3).ids.tolist() == best
    assert after.search(query, 3).ids.tolist() == exact(left, query, 3)
    assert after.ids.tolist() == sorted(left)
    with pytest.raises(ShardMissing):
        after.vectors(np.array(best[:1]))
    with pytest.raises(ShardMissing, match="no task has vector 555"):
        store.delete([555])


def test_appended_segment_is_searched(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    publish_task(store, "a", range(10))
    before = open_shard_of(store)
    append(store, range(50, 65), unit(15, 8))
    after = open_shard_of(store)
    rows = dict(enumerate(unit(10))) | dict(zip(range(50, 65), unit(15, 8), strict=True))
    for query in unit(4, 2):
        assert after.search(query, 12).ids.tolist() == exact(rows, query, 12)
        assert before.search(query, 12).ids.max() < 10
    assert np.array_equal(after.vectors(np.array([3, 60])), np.stack([rows[3], rows[60]]))


def test_compaction_keeps_results_and_old_generation(
    store: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(10))
    append(store, range(50, 55), unit(5, 8))
    store.delete([4, 52])
    before = open_shard_of(store)
    store.compact("a")
    after = open_shard_of(store)
    assert len(after.segments) == 1
    assert np.array_equal(after.vectors(after.ids), before.vectors(before.ids))
    for query in unit(4, 2):
        hits, was = after.search(query, 6), before.search(query, 6)
        assert hits.ids.tolist() == was.ids.tolist()
        assert np.allclose(hits.scores, was.scores, atol=CLOSE)


def test_tasks_are_separate(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    tasks = [f"task {n}" for n in range(6)]  # with a space, which names of partitions cannot have
    for number, task in enumerate(tasks):
        publish_task(store, task, range(10 * number, 10 * number + 10), seed=number)
    for number, task in enumerate(tasks):
        rows = dict(zip(range(10 * number, 10 * number + 10), unit(10, number), strict=True))
        (query,) = unit(1, 77)
        assert open_shard_of(store, task).search(query, 10).ids.tolist() == exact(rows, query, 10)


def test_unpublished_write_is_invisible_and_repeatable(
    store: ShardStore, publish_task: Callable, write: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(5))
    release, shard = write(store, "b", range(10, 20), seed=1)  # as by a writer that dies before it publishes
    assert IndexSnapshot.open(store).tasks == ["a"]
    assert write(store, "b", range(10, 20), seed=1) == (release, shard)
    manifest = store.publish(release=release, shards=[shard])
    assert store.publish(release=release, shards=[shard]) == manifest
    (query,) = unit(1, 3)
    rows = dict(zip(range(10, 20), unit(10, 1), strict=True))
    assert open_shard_of(store, "b").search(query, 99).ids.tolist() == exact(rows, query, 99)


def test_garbage_collection_drops_orphaned_rows(
    store: ShardStore, publish_task: Callable, write: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(5))
    _, left = write(store, "a", range(20, 30), seed=1)  # an unpublished segment of a served task
    _, alone = write(store, "b", range(40, 50), seed=1)
    store.collect_garbage()
    store.check(alone, "rows")  # younger than an hour
    age(*store.folders())
    store.collect_garbage()
    for gone in (left, alone):
        assert not store.shard_folder(gone.id).exists()
        if gone.place:
            with pytest.raises((ShardMissing, ShardCorrupt)):
                store.check(gone, "rows")
    (query,) = unit(1, 3)
    assert open_shard_of(store).search(query, 99).ids.tolist() == exact(dict(enumerate(unit(5))), query, 99)


def test_reopened_store_has_all_vectors(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    publish_task(store, "a", range(30))
    remote = store.remote
    if isinstance(remote, MilvusVectorStore):
        remote.close()
        remote = MilvusVectorStore(remote.address)
    again = ShardStore(store.root, remote=remote)
    (query,) = unit(1, 3)
    assert open_shard_of(again).search(query, 4).ids.tolist() == exact(dict(enumerate(unit(30))), query, 4)
    report = audit(again)
    assert (report.problems, report.ids["a"].tolist()) == ([], list(range(30)))


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True])
def test_move_keeps_results(
    tmp_path: Path, milvus: MilvusVectorStore, publish_task: Callable, unit: Callable, there: bool
) -> None:
    source = ShardStore(tmp_path / "index", remote=milvus, write_remote=there)
    target = ShardStore(tmp_path / "index", remote=milvus, write_remote=not there)
    publish_task(source, "a", range(25))
    append(source, range(50, 55), unit(5, 8))
    source.delete([3])
    before = open_shard_of(source)
    manifest = target.move("a")
    assert bool(manifest.shards["a"].place) is not there
    assert target.move("a") == manifest
    after = open_shard_of(target)
    assert np.array_equal(after.ids, before.ids)
    assert np.array_equal(after.vectors(after.ids), before.vectors(before.ids))
    for query in unit(4, 2):
        assert after.search(query, 9).ids.tolist() == before.search(query, 9).ids.tolist()
    assert append(target, [70], unit(1, 4)).segments("a")[1].place == manifest.shards["a"].place
