"""Deletions, appended segments and compaction: searches equal those of a shard with only the live vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from index.errors import ShardInvalid, ShardMissing
from index.files.manifest_format import Manifest, SegmentEntry
from index.files.store_folder import list_manifest_files
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import FaissShard
from tests.index.published_shards import age


@pytest.fixture
def extend(unit: Callable) -> Callable[..., SegmentEntry]:
    """Write another segment of a task, unpublished."""

    def make(
        store: ShardStore, task: str, ids: Iterable[int], *, seed: int = 0, **change: str
    ) -> SegmentEntry:
        first = store.manifest().shards[task]
        made = {"release": first.release, "fingerprint": first.fingerprint, **change}
        numbers = np.array(list(ids), np.int64)
        return store.write_shard(task=task, ids=numbers, vectors=unit(len(numbers), seed), **made)

    return make


def _shard(store: ShardStore, task: str, previous: IndexSnapshot | None = None) -> FaissShard:
    return IndexSnapshot.open(store, previous=previous).shard(task, fingerprint=f"encoder of {task}")


def _brute_force(vectors: dict[int, np.ndarray], query: np.ndarray, k: int) -> list[int]:
    scores = {number: float(vector.astype(np.float64) @ query) for number, vector in vectors.items()}
    return sorted(scores, key=lambda number: (-scores[number], number))[:k]


@pytest.mark.parametrize("seed", range(4))
def test_search_after_any_history_equals_search_of_live_vectors(
    store: ShardStore, publish_task: Callable, extend: Callable, unit: Callable, seed: int
) -> None:
    # Random appends, deletions and compactions, compared with a dictionary.
    chance = np.random.default_rng(seed)
    publish_task(store, "a", range(20), seed=50)
    publish_task(store, "other", range(1000, 1010), seed=51)
    left = dict(enumerate(unit(20, 50)))
    fresh = chance.permutation(np.arange(20, 900)).tolist()  # ranges of IDs overlap
    snapshot: IndexSnapshot | None = None
    for turn in range(12):
        match chance.integers(3):
            case 0:
                count = int(chance.integers(1, 9))
                ids = [fresh.pop() for _ in range(count)]
                store.append(extend(store, "a", ids, seed=turn))
                left |= dict(zip(ids, unit(count, turn), strict=True))
            case 1:
                gone = chance.choice(sorted(left), size=min(5, len(left) - 1), replace=False)
                store.delete(int(number) for number in gone)
                left = {number: vector for number, vector in left.items() if number not in gone}
            case _:
                store.compact("a")
        snapshot = IndexSnapshot.open(store, previous=snapshot)
        shard = snapshot.shard("a", fingerprint="encoder of a")
        assert shard.ids.tolist() == sorted(left)
        assert shard.count == len(left)
        assert (shard.vectors(shard.ids) == np.array([left[number] for number in sorted(left)])).all()
        for query in unit(3, 70 + turn):
            for k in (1, 7, 1000):
                assert shard.search(query, k).ids.tolist() == _brute_force(left, query, k)
            skipped = sorted(left)[::2]
            rest = {number: vector for number, vector in left.items() if number not in skipped}
            assert shard.search(query, 5, exclude=skipped).ids.tolist() == _brute_force(rest, query, 5)
        assert audit(store).problems == []
        copied = {name.split("/")[1] for name in list_manifest_files(store, store.manifest())}
        assert copied == store.manifest().folder_ids()
    assert _shard(store, "other").count == 10


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.99])
@pytest.mark.parametrize("best_first", [True, False])
def test_deletions_at_any_position_are_excluded(
    store: ShardStore, publish_task: Callable, unit: Callable, share: float, best_first: bool
) -> None:
    # Among the best rows, where a longer result only adds deleted rows, and among the worst.
    publish_task(store, "a", range(400), seed=3)
    query = unit(1, 9)[0]
    vectors = dict(enumerate(unit(400, 3)))
    order = _brute_force(vectors, query, 400)
    gone = (order if best_first else order[::-1])[: int(share * 400)]
    store.delete(gone)
    left = [number for number in order if number not in gone]
    for k in (1, 3, 20, 400):
        assert _shard(store, "a").search(query, k).ids.tolist() == left[:k]


def test_compaction_keeps_scores_bit_for_bit(
    store: ShardStore, publish_task: Callable, extend: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(40), seed=1)
    store.append(extend(store, "a", range(100, 130), seed=2))
    store.append(extend(store, "a", range(60, 70), seed=1))  # repeated vectors: equal scores across segments
    store.delete(range(0, 40, 3))
    before = [_shard(store, "a").search(query, 50) for query in unit(5, 3)]
    store.compact("a")
    after = [_shard(store, "a").search(query, 50) for query in unit(5, 3)]
    for one, other in zip(before, after, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.scores.tobytes() == other.scores.tobytes()
    manifest = store.manifest()
    assert (manifest.appended, manifest.tombstones) == ({}, {})
    assert manifest.shards["a"].count == 40 + 30 + 10 - 14
    assert store.compact("a") == manifest  # nothing remains to be compacted


def test_readers_keep_older_generation_after_compaction(
    store: ShardStore, publish_task: Callable, extend: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(10))
    store.append(extend(store, "a", range(10, 15), seed=1))
    age(*store.folders())
    old = IndexSnapshot.open(ShardStore(store.root), verify=False)  # opens its files at the first search
    query = unit(1, 4)[0]
    before = IndexSnapshot.open(store).shard("a", fingerprint="encoder of a").search(query, 15).ids.tolist()
    store.delete([before[0]])
    store.compact("a")
    store.collect_garbage()
    assert old.shard("a", fingerprint="encoder of a").search(query, 15).ids.tolist() == before
    age(*store.folders())
    store.collect_garbage()
    assert {folder.name for folder in store.folders()} == store.manifest().folder_ids()
    assert _shard(store, "a").search(query, 15).ids.tolist() == before[1:]


def test_new_generation_verifies_only_new_segments(
    store: ShardStore, publish_task: Callable, extend: Callable
) -> None:
    publish_task(store, "a", range(10))
    first = IndexSnapshot.open(store)
    path = store.shard_folder(first.manifest.shards["a"].id) / "vectors.faiss"
    whole = path.read_bytes()
    store.append(extend(store, "a", range(10, 15), seed=1))
    store.delete([2])
    path.write_bytes(whole[:-1] + b"\7")  # detected if the file is read again
    assert IndexSnapshot.open(store, previous=first).degraded == {}
    assert list(IndexSnapshot.open(store).degraded) == ["a"]


def test_damaged_tombstones_degrade_task(store: ShardStore, publish_task: Callable) -> None:
    publish_task(store, "a", range(10))
    publish_task(store, "b", range(10, 20))
    entry = store.delete([3]).tombstones["a"]
    path = store.tombstone_folder(entry.id) / "deleted.npy"
    whole = path.read_bytes()
    for harm in (whole[:-1], whole[:-1] + b"\7", b""):
        path.write_bytes(harm)
        snapshot = IndexSnapshot.open(store, verify=False)  # deleted vectors are not returned again
        assert (snapshot.tasks, list(snapshot.degraded)) == (["b"], ["a"])
        assert "deletions" in snapshot.degraded["a"]
        assert any("deletions" in problem for problem in audit(store).problems)
    path.unlink()
    assert "deleted.npy is missing" in IndexSnapshot.open(store).degraded["a"]


def test_delete_is_idempotent_and_failures_change_nothing(store: ShardStore, publish_task: Callable) -> None:
    publish_task(store, "a", range(5))
    publish_task(store, "b", range(5, 10))
    manifest = store.delete([1, 7])
    assert {task: entry.count for task, entry in manifest.tombstones.items()} == {"a": 1, "b": 1}
    assert store.delete([7, 1]) == manifest
    with pytest.raises(ShardMissing, match="no task has vector 99"):
        store.delete([2, 99])
    with pytest.raises(ShardMissing, match="nobody has no shard"):
        store.compact("nobody")
    assert store.manifest() == manifest
    assert Manifest.loads(manifest.dumps()) == manifest


def test_append_requires_pinned_release(
    store: ShardStore, publish_task: Callable, extend: Callable, adopt: Callable
) -> None:
    before = publish_task(store, "a", range(5))
    for change in ({"release": adopt(store, "another").id}, {"fingerprint": "another"}):
        with pytest.raises(ShardInvalid, match="embed with that one"):
            store.append(extend(store, "a", range(5, 7), **change))
    with pytest.raises(ShardInvalid, match="9 dimensions, those of the task have 8"):
        store.append(replace(extend(store, "a", range(5, 7)), dim=9))
    with pytest.raises(ShardInvalid, match="ID 4 already belongs to task a"):
        store.append(extend(store, "a", range(4, 7)))
    with pytest.raises(ShardInvalid, match="not published"):
        store.append(replace(extend(store, "a", range(5, 7)), task="nobody"))
    assert store.manifest() == before
    segment = extend(store, "a", range(5, 7))
    assert store.append(segment) == store.append(segment)
    assert store.manifest().generation == 2


def test_new_shard_or_segment_and_deletions_are_one_generation(
    store: ShardStore, publish_task: Callable, write: Callable, extend: Callable
) -> None:
    publish_task(store, "other", range(100, 104))
    release, shard = write(store, "a", range(6))
    manifest = store.publish(release=release, shards=[shard], deleted=[4, 1, 999, 101])
    assert manifest.generation == 2
    assert _shard(store, "a").ids.tolist() == [0, 2, 3, 5]
    assert _shard(store, "other").ids.tolist() == [100, 101, 102, 103], "only the new shard"
    assert store.publish(release=release, shards=[shard], deleted=[0]) == manifest, "it is published already"
    segment = extend(store, "a", range(6, 9))
    manifest = store.append(segment, deleted={"a": [0, 7, 99]})
    assert manifest.generation == 3
    assert store.tombstones(manifest, "a").tolist() == [0, 1, 4, 7]
    assert store.append(segment, deleted={"a": [7]}) == manifest
    assert store.tombstones(store.append(deleted={"a": [8]}), "a").tolist() == [0, 1, 4, 7, 8]
    assert audit(store).problems == []


def test_delete_within_task_ignores_foreign_ids(store: ShardStore, publish_task: Callable) -> None:
    publish_task(store, "a", range(4))
    publish_task(store, "b", range(10, 14))
    store.delete([1, 11, 77], task="a")
    assert (_shard(store, "a").ids.tolist(), _shard(store, "b").count) == ([0, 2, 3], 4)
    generation = store.manifest().generation
    assert store.delete([1, 11], task="a").generation == generation
    assert store.delete([1, 11], task="nowhere").generation == generation
    with pytest.raises(ShardMissing):
        store.delete([1, 77])
