"""Writing and publishing: validation, visibility, garbage collection, segments of moments, and upgrades."""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.arrays import moment_ids, video_ids_of
from index.errors import ManifestError, ShardInvalid, ShardMissing
from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.files.store_folder import StoreFolder
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.shard_store import ShardStore
from tests.index.published_shards import age, append, open_shard_of

DIM = 8


def test_published_task_is_complete(store: ShardStore, publish_task: Callable, unit: Callable) -> None:
    manifest = publish_task(store, "a", [3, 1, 2])
    assert (manifest.generation, list(manifest.shards)) == (1, ["a"])
    entry = manifest.shards["a"]
    assert (entry.count, entry.dim, entry.first_id, entry.last_id) == (3, DIM, 1, 3)
    assert entry.release == manifest.release
    assert store.manifest() == manifest
    folder = store.shard_folder(entry.id)
    assert sorted(path.name for path in folder.iterdir()) == ["ids.npy", "shard.json", "vectors.faiss"]
    assert entry.bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert not list((store.root / "tmp").iterdir())
    snapshot = IndexSnapshot.open(store)
    assert (snapshot.generation, snapshot.manifest.release, snapshot.tasks) == (1, manifest.release, ["a"])
    assert (snapshot.release_folder(manifest.release) / "release.json").read_text() == "after a"
    best = snapshot.shard("a", fingerprint="encoder of a").search(unit(3)[0], 1)
    assert best.ids.tolist() == [3]


def test_folders_are_readable_by_other_users(store: ShardStore, publish_task: Callable) -> None:
    before = os.umask(0o022)
    try:
        manifest = publish_task(store, "a", [1])
    finally:
        os.umask(before)
    for folder in (store.shard_folder(manifest.shards["a"].id), store.release_folder(manifest.release)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_content_id_does_not_depend_on_order(store: ShardStore, unit: Callable) -> None:
    vectors = unit(3)
    same = dict(task="a", release="r", fingerprint="f")
    one = store.write_shard(**same, ids=np.array([1, 2, 3]), vectors=vectors)
    other = store.write_shard(**same, ids=np.array([3, 1, 2]), vectors=vectors[[2, 0, 1]])
    assert one == other
    assert one != store.write_shard(**same, ids=np.array([1, 2, 4]), vectors=vectors)


@pytest.mark.parametrize(
    ("ids", "change", "message"),
    [
        ([1, 2, 1], {}, "ID 1 occurs twice"),
        ([1, -1, 2], {}, "ID -1 is negative"),
        ([1, 2], {}, "do not fit together"),
        ([], {}, "it is empty"),
        ([1.0, 2.0, 3.0], {}, "IDs are float64"),
        ([1, 2, 3], {1: np.nan}, "vector of ID 2 is not finite"),
        ([1, 2, 3], {2: np.inf}, "vector of ID 3 is not finite"),
        ([1, 2, 3], {0: 0.9}, "vector of ID 1 does not have unit length"),
    ],
)
def test_invalid_vectors_raise(
    store: ShardStore, unit: Callable, ids: list, change: dict[int, float], message: str
) -> None:
    vectors = unit(3) if ids else np.empty((0, DIM), np.float32)
    for row, value in change.items():
        vectors[row] = value
    numbers = np.array(ids) if ids else np.empty(0, np.int64)
    with pytest.raises(ShardInvalid, match=f"shard of task a: .*{message}") as refused:
        store.write_shard(task="a", release="r", fingerprint="f", ids=numbers, vectors=vectors)
    assert isinstance(refused.value, ValueError)
    assert not store.root.exists()  # nothing was created


def test_unit_length_has_tolerance(store: ShardStore, unit: Callable) -> None:
    vectors = unit(3)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[1] *= 1.0009
    store.write_shard(task="a", release="r", fingerprint="f", ids=np.arange(3), vectors=vectors)
    vectors[1] *= 1.0009
    with pytest.raises(ShardInvalid, match="unit length"):
        store.write_shard(task="a", release="r", fingerprint="f", ids=np.arange(3), vectors=vectors)


def test_conflicting_shards_are_not_published(
    store: ShardStore, publish_task: Callable, write: Callable, adopt: Callable
) -> None:
    publish_task(store, "a", [1, 5, 9])
    before = publish_task(store, "b", [2, 6])  # overlapping ranges of distinct IDs
    again = write(store, "a", [1, 5, 9], seed=1)
    taken = write(store, "c", [3, 6, 7])
    homeless = (adopt(store, "another"), write(store, "c", [10])[1])
    for (release, shard), problem in (
        (again, "never replaced"),
        (taken, "ID 6 already belongs to task b"),
        (homeless, "neither published nor being published"),
    ):
        with pytest.raises(ShardInvalid, match=problem):
            store.publish(release=release, shards=[shard])
    release, one = write(store, "c", [10, 11])
    other = replace(write(store, "d", [11, 12])[1], release=release.id)
    with pytest.raises(ShardInvalid, match="belongs to task"):
        store.publish(release=release, shards=[one, other])
    assert store.manifest() == before


def test_damaged_shard_is_not_published(store: ShardStore, write: Callable) -> None:
    release, shard = write(store, "a", [1])
    path = store.shard_folder(shard.id) / "vectors.faiss"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(ShardInvalid, match=r"vectors\.faiss was altered; write it again"):
        store.publish(release=release, shards=[shard])
    assert write(store, "a", [1]) == (release, shard)  # writing again repairs it
    assert store.publish(release=release, shards=[shard]).generation == 1
    assert IndexSnapshot.open(store).degraded == {}


def test_publish_raises_for_damaged_manifest(
    store: ShardStore, publish_task: Callable, write: Callable
) -> None:
    publish_task(store, "a", [1])
    store.manifest_path.write_text(
        store.manifest_path.read_text().replace('"generation": 1', '"generation": 5')
    )
    release, shard = write(store, "b", [2])
    with pytest.raises(ManifestError, match="altered"):
        store.publish(release=release, shards=[shard])


def test_release_is_stored_once_and_without_special_files(store: ShardStore, adopt: Callable) -> None:
    first = adopt(store, "x")
    assert adopt(store, "x") == first
    assert [path.name for path in (store.root / "releases").iterdir()] == [first.id]
    assert not list((store.root / "tmp").iterdir())
    staged = store.stage()
    with pytest.raises(ShardInvalid, match="this one has no file"):
        store.adopt_release(staged)
    (staged / "link").symlink_to("/etc/hostname")
    with pytest.raises(ShardInvalid, match="this one has link"):
        store.adopt_release(staged)


def test_garbage_collection_removes_old_unreferenced_folders(
    store: ShardStore, publish_task: Callable, write: Callable
) -> None:
    manifest = publish_task(store, "a", [1])
    _, forgotten = write(store, "b", [2])
    release, fresh = write(store, "c", [3])
    staged = store.stage()
    shard, current = store.shard_folder(manifest.shards["a"].id), store.release_folder(manifest.release)
    age(staged, shard, current, store.shard_folder(forgotten.id))
    store.collect_garbage()
    assert not staged.exists()
    assert not store.shard_folder(forgotten.id).exists()
    published = store.publish(release=release, shards=[fresh])
    assert published.generation == 2
    late = {"release": manifest.releases[manifest.release], "shards": [manifest.shards["a"]]}
    assert store.publish(**late) == published, "a late writer does not restore an old release"
    assert IndexSnapshot.open(store).degraded == {}


def test_rewritten_content_survives_garbage_collection(
    store: ShardStore, publish_task: Callable, write: Callable
) -> None:
    publish_task(store, "before", [0])
    release, shard = write(store, "a", [1])
    age(store.shard_folder(shard.id), store.release_folder(release.id))
    write(store, "a", [1])
    store.collect_garbage()
    assert store.publish(release=release, shards=[shard]).generation == 2


def test_garbage_collection_skips_a_folder_that_another_writer_has_renamed(
    store: ShardStore, publish_task: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = publish_task(store, "a", [1])
    renamed = store.root / "tmp" / "renamed"
    monkeypatch.setattr(StoreFolder, "folders", lambda self: [renamed])
    store.collect_garbage()
    assert store.manifest().shards.keys() == manifest.shards.keys()


def test_garbage_collection_stops_without_manifest(store: ShardStore, publish_task: Callable) -> None:
    store.collect_garbage()
    assert not store.root.exists()
    publish_task(store, "a", [1])
    folders = store.folders()
    age(*folders)
    aside = store.manifest_path.rename(store.root / "manifest.aside")
    store.collect_garbage()
    assert store.folders() == folders
    aside.rename(store.manifest_path)
    store.collect_garbage()
    assert store.folders() == folders
    assert IndexSnapshot.open(store).degraded == {}


Write = Callable[..., tuple[ReleaseEntry, SegmentEntry]]
Unit = Callable[..., np.ndarray]


def _segment(store: ShardStore, unit: Unit, shard: SegmentEntry, videos: range) -> SegmentEntry:
    ids = np.concatenate([moment_ids(video, 3) for video in videos])
    made = {"task": shard.task, "release": shard.release, "fingerprint": shard.fingerprint}
    return store.write_shard(**made, ids=ids, vectors=unit(len(ids), seed=9))


def test_shard_and_moment_segments_are_published_together(
    store: ShardStore, write: Write, unit: Unit
) -> None:
    release, shard = write(store, "a", range(4))
    segments = [_segment(store, unit, shard, range(2)), _segment(store, unit, shard, range(3, 4))]
    manifest = store.publish(release=release, shards=[shard], segments=segments)
    assert manifest.generation == 1
    assert manifest.segments("a") == (shard, *segments)
    assert store.publish(release=release, shards=[shard], segments=segments) == manifest
    assert store.publish(release=release, shards=[shard]) == manifest, "publishing again changes nothing"
    opened = IndexSnapshot.open(store).shard("a", fingerprint=shard.fingerprint)
    assert sorted(video_ids_of(opened.ids).tolist()) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 3]
    assert np.array_equal(opened.vectors(np.arange(4)), unit(4))


def test_deleting_video_deletes_its_moments(store: ShardStore, write: Write, unit: Unit) -> None:
    """Before and after publication, in a segment of their own and compacted; also a single moment."""
    release, shard = write(store, "a", range(4))
    segment = _segment(store, unit, shard, range(4))
    store.publish(release=release, shards=[shard], segments=[segment], deleted=[1])

    def left() -> list[int]:
        return IndexSnapshot.open(store).shard("a", fingerprint=shard.fingerprint).ids.tolist()

    def of(*videos: int) -> list[int]:
        return [*videos, *(i for video in videos for i in moment_ids(video, 3).tolist())]

    assert left() == of(0, 2, 3)
    assert store.delete([2], task="a").tombstones["a"].count == len(of(1, 2))
    assert left() == of(0, 3)
    store.delete(moment_ids(3, 3)[:1])
    assert left() == [i for i in of(0, 3) if i != moment_ids(3, 1)[0]]
    store.compact("a")
    generation = store.delete([0]).generation
    assert left() == [3, *moment_ids(3, 3)[1:].tolist()]
    with pytest.raises(ShardMissing):  # the compacted segment does not contain it
        store.delete([2])
    assert store.delete([0]).generation == generation


def test_invalid_moment_segment_blocks_publication(store: ShardStore, write: Write, unit: Unit) -> None:
    release, shard = write(store, "a", range(4))
    segment = _segment(store, unit, shard, range(2))
    for wrong, why in (
        (replace(segment, fingerprint="another"), "embed with that one"),
        (_segment(store, lambda n, seed: unit(n, seed, 4), shard, range(2)), "4 dimensions"),
        (replace(segment, id="0" * 64), "is not in the store as it was written"),
    ):
        with pytest.raises(ShardInvalid, match=why):
            store.publish(release=release, shards=[shard], segments=[segment, wrong][1:])
        assert store.manifest().shards == {}
    with pytest.raises(ShardInvalid, match="already belongs to task a"):
        store.publish(release=release, shards=[shard], segments=[segment, segment])
    assert store.manifest().generation == 0


@pytest.fixture
def upgrade(write: Callable) -> Callable[..., Manifest]:
    """Replace task ``a`` by a shard with other vectors."""

    def make(store: ShardStore, ids: list[int], seed: int = 7) -> Manifest:
        release, shard = write(store, "a", ids, seed=seed)
        return store.publish(release=release, shards=[shard], upgrades=True)

    return make


def _ids(store: ShardStore) -> list[int]:
    return open_shard_of(store).ids.tolist()


@pytest.fixture
def two_tasks(store: ShardStore, publish_task: Callable, unit: Callable) -> Manifest:
    """Publish two tasks; the first has an append and a deleted video."""
    publish_task(store, "a", [1, 5, 9])
    append(store, [20, 21], unit(2, 3))
    store.delete([5])
    publish_task(store, "b", [2, 6])
    return store.manifest()


def test_undone_upgrade_restores_the_shard_without_videos_deleted_since(
    store: ShardStore, two_tasks: Manifest, upgrade: Callable
) -> None:
    before, vectors = two_tasks, open_shard_of(store).vectors(open_shard_of(store).ids)
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


def test_partial_upgrade_leaves_the_other_videos_in_their_shard(
    store: ShardStore, two_tasks: Manifest, write: Callable
) -> None:
    def live() -> dict[str, list[int]]:
        snapshot = IndexSnapshot.open(store)
        shards = {
            key: snapshot.shard(key, fingerprint=entry.fingerprint)
            for key, entry in snapshot.manifest.shards.items()
        }
        assert audit(store).problems == []
        assert Manifest.loads(store.manifest().dumps()) == store.manifest()
        return {key: shard.ids.tolist() for key, shard in shards.items()}

    def upgrade(ids: list[int], seed: int, **fields: object) -> str:
        release, shard = write(store, "a", ids, seed=seed)
        store.publish(release=release, shards=[shard], upgrades=True, partial=True, **fields)
        return f"a~{shard.id[:12]}"

    first = f"a~{two_tasks.shards['a'].id[:12]}"
    second = upgrade([1, 20], 7)
    assert live() == {"a": [1, 20], "b": [2, 6], first: [9, 21]}
    store.delete([21], task="a")
    assert store.stored_ids("a", np.array([9, 20])).tolist() == [9, 20]
    upgrade([1], 8)
    assert live() == {"a": [1], "b": [2, 6], first: [9], second: [20]}
    age(*store.folders())
    store.collect_garbage()
    store.compact("a")
    assert live() == {"a": [1], "b": [2, 6], first: [9], second: [20]}
    assert not store.manifest().tombstones
    store.undo_upgrade("a", deleted=[21])
    assert live() == {"a": [1, 20], "b": [2, 6], first: [9]}
    upgrade([1, 9, 20], 9)
    assert live() == {"a": [1, 9, 20], "b": [2, 6]}
    store.undo_upgrade("a")
    store.accept_upgrade("a")
    store.clear("a")
    assert live() == {"a": [], "b": [2, 6]}


def test_undone_partial_upgrade_joins_the_videos_again(
    store: ShardStore, publish_task: Callable, write: Callable
) -> None:
    before = publish_task(store, "a", [1, 5, 9])
    release, shard = write(store, "a", [1, 5], seed=7)
    store.publish(release=release, shards=[shard], upgrades=True, partial=True, deleted=[5])
    assert _ids(store) == [1]
    store.undo_upgrade("a", deleted=[5])
    assert store.manifest().shards == before.shards
    assert _ids(store) == [1, 9]
