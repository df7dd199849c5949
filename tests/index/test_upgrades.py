"""Upgrades: a task's shard is replaced by one of another release, and the replacement is undone or accepted."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from index.errors import ShardMissing
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from tests.index.published_shards import age, append, open_shard_of


@pytest.fixture
def upgrade(write: Callable) -> Callable[..., Manifest]:
    """Replace task ``a`` by a shard with other vectors."""

    def make(store: ShardStore, ids: list[int], seed: int = 7) -> Manifest:
        release, shard = write(store, "a", ids, seed=seed)
        return store.publish(release=release, shards=[shard], upgrades=True)

    return make


def _ids(store: ShardStore) -> list[int]:
    return open_shard_of(store).ids.tolist()


def test_undone_upgrade_restores_the_shard_without_videos_deleted_since(
    store: ShardStore, publish_task: Callable, upgrade: Callable, unit: Callable
) -> None:
    publish_task(store, "a", [1, 5, 9])
    append(store, [20, 21], unit(2, 3))
    store.delete([5])
    publish_task(store, "b", [2, 6])
    before, vectors = store.manifest(), open_shard_of(store).vectors(open_shard_of(store).ids)
    after = upgrade(store, [1, 9, 20, 21])
    assert list(after.shards) == ["a", "b"], "the task keeps its place"
    assert _ids(store) == [1, 9, 20, 21]
    assert (open_shard_of(store).vectors(open_shard_of(store).ids) != vectors).any()
    assert Manifest.loads(after.dumps()) == after
    store.delete([9])
    folders = [store.shard_folder(entry.id) for entry in before.segments("a")]
    age(*folders, store.tombstone_folder(before.tombstones["a"].id))
    store.collect_garbage()
    assert audit(store).problems == []
    store.undo_upgrade("a", deleted=[9])
    assert _ids(store) == [1, 20, 21]
    assert (open_shard_of(store).vectors(open_shard_of(store).ids) == vectors[[0, 2, 3]]).all()
    assert store.manifest().shards == before.shards
    with pytest.raises(ShardMissing, match="no upgrade that can be undone"):
        store.undo_upgrade("a")


def test_accepted_second_or_cleared_upgrade_drops_the_earlier_shard(
    store: ShardStore, publish_task: Callable, upgrade: Callable
) -> None:
    first = publish_task(store, "a", [1, 5])
    second = upgrade(store, [1, 5])
    third = upgrade(store, [1, 5], seed=8)
    assert store.undo_upgrade("a").shards == second.shards
    upgrade(store, [1, 5], seed=8)
    store.accept_upgrade("a")
    assert store.accept_upgrade("a").shards == third.shards
    folders = [store.shard_folder(manifest.shards["a"].id) for manifest in (first, second)]
    age(*folders)
    store.collect_garbage()
    assert not any(map(Path.exists, folders))
    upgrade(store, [1, 5], seed=9)
    store.clear("a")
    assert not store.manifest().replaced
    assert _ids(store) == []


def test_compaction_keeps_the_replaced_shard_and_audits_name_its_damage(
    store: ShardStore, publish_task: Callable, upgrade: Callable
) -> None:
    first = publish_task(store, "a", [1, 5]).shards["a"]
    loaded = weakref.ref(store.segment_cache.get(store.shard_folder(first.id), first))
    kept = upgrade(store, [1, 5]).replaced
    store.delete([1])
    assert store.compact("a").replaced == kept
    (store.shard_folder(kept["a"].segments[0].id) / "ids.npy").write_bytes(b"")
    assert IndexSnapshot.open(store).degraded == {}
    assert loaded() is None, "searches keep it in memory no longer"
    assert any("can't be undone" in problem for problem in audit(store).problems)
