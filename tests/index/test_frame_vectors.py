"""Frame vectors: an optional file of a segment that is published, deleted, compacted and verified with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.errors import ShardCorrupt, ShardInvalid, ShardMissing
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.manifest_files import list_manifest_files
from index.shard_store import ShardStore
from index.shards.searchable_shard import SearchableShard
from index.vector_ids import moment_ids

IDS = [30, 10, 20]


@pytest.fixture
def write_frames(adopt: Callable, unit: Callable) -> Callable[..., Manifest]:
    """Publishes a task, or appends to it, with three frames per video, made from ``seed + 100``."""

    def make(store: ShardStore, ids: list[int], *, seed: int = 1, has_frames: bool = True) -> Manifest:
        release = adopt(store, "after a")
        segment = store.write_shard(
            task="a",
            release=release.id,
            fingerprint="encoder of a",
            ids=np.array(ids),
            vectors=unit(len(ids), seed),
            frames=unit(3 * len(ids), seed + 100).reshape(-1, 3, 8) if has_frames else None,
        )
        if "a" in store.manifest().shards:
            return store.append(segment)
        return store.publish(release=release, shards=[segment])

    return make


def _shard(store: ShardStore) -> SearchableShard:
    return IndexSnapshot.open(store).shard("a", fingerprint="encoder of a")


def test_frames_follow_their_videos(store: ShardStore, write_frames: Callable, unit: Callable) -> None:
    manifest = write_frames(store, IDS)
    frames = unit(9, 101).reshape(-1, 3, 8)
    shard = _shard(store)
    assert shard.has_frames
    for number, id in enumerate(IDS):
        assert np.array_equal(shard.frame_vectors(np.array([id]))[0], frames[number])
    assert np.array_equal(shard.frame_vectors(np.array([20, 30, 20])), frames[[2, 0, 2]])
    assert shard.frame_vectors(np.empty(0, np.int64)).shape == (0, 0, 8)
    entry = manifest.shards["a"]
    stored = np.load(store.shard_folder(entry.id) / "frames.npy")
    assert (stored.dtype, stored.shape) == (np.float16, (3, 3, 8))
    assert "frames.npy" in entry.files
    assert Manifest.loads(manifest.dumps()) == manifest


def test_shard_without_frames_has_no_further_file(store: ShardStore, write_frames: Callable) -> None:
    bare = write_frames(store, IDS, has_frames=False).shards["a"]
    assert sorted(bare.files) == ["ids.npy", "shard.json", "vectors.faiss"]
    shard = _shard(store)
    assert not shard.has_frames
    with pytest.raises(ShardMissing, match="has no frame vectors"):
        shard.frame_vectors(np.array([10]))


def test_appended_segments_and_deletions(store: ShardStore, write_frames: Callable, unit: Callable) -> None:
    write_frames(store, IDS)
    write_frames(store, [5, 25], seed=2)
    frames = np.concatenate([unit(9, 101), unit(6, 102)]).reshape(-1, 3, 8)
    assert np.array_equal(_shard(store).frame_vectors(np.array([25, 10, 5])), frames[[4, 1, 3]])
    store.delete([10])
    shard = _shard(store)
    with pytest.raises(ShardMissing, match="no frame vectors of 10"):
        shard.frame_vectors(np.array([20, 10]))
    write_frames(store, [40], seed=3, has_frames=False)
    assert not _shard(store).has_frames


@pytest.mark.parametrize("has_frames", [True, False])
def test_compaction_keeps_frames_of_all_or_none(
    store: ShardStore, write_frames: Callable, unit: Callable, has_frames: bool
) -> None:
    write_frames(store, IDS)
    write_frames(store, [5, 25], seed=2, has_frames=has_frames)
    store.delete([10])
    store.compact("a")
    shard = _shard(store)
    assert len(shard.segments) == 1
    assert shard.has_frames == has_frames
    if has_frames:
        frames = np.concatenate([unit(9, 101), unit(6, 102)]).reshape(-1, 3, 8)
        assert np.array_equal(shard.frame_vectors(shard.ids), frames[[3, 2, 4, 0]])
    store.delete([5, 20, 25, 30])
    store.compact("a")
    assert _shard(store).count == 0
    write_frames(store, [50], seed=4)
    assert _shard(store).has_frames, "an empty segment needs no frames"


def test_moments_have_no_frames(store: ShardStore, write_frames: Callable, unit: Callable) -> None:
    first = write_frames(store, IDS).shards["a"]
    made = {"task": "a", "release": first.release, "fingerprint": first.fingerprint}
    ids = moment_ids(20, 4)
    with pytest.raises(ShardInvalid, match="it has moments, which have no frame vectors"):
        store.write_shard(**made, ids=ids, vectors=unit(4), frames=unit(8).reshape(4, 2, 8))
    store.append(store.write_shard(**made, ids=ids, vectors=unit(4)))
    before = _shard(store)
    assert before.has_frames
    store.compact("a")
    after = _shard(store)
    assert len(after.segments) == 1
    assert after.has_frames
    videos = np.array([10, 20, 30])
    assert np.array_equal(after.frame_vectors(videos), before.frame_vectors(videos))
    with pytest.raises(ShardMissing):
        after.frame_vectors(ids[:1])


def test_invalid_frames_are_refused(store: ShardStore, unit: Callable) -> None:
    made = {"task": "a", "release": "r", "fingerprint": "f", "ids": np.arange(2), "vectors": unit(2)}
    for frames in (unit(2), unit(3).reshape(1, 3, 8), unit(4, dim=4).reshape(2, 2, 4), np.empty((2, 0, 8))):
        with pytest.raises(ShardInvalid, match="do not fit vectors"):
            store.write_shard(**made, frames=frames)
    wrong = unit(4).reshape(2, 2, 8).copy()
    for value in (2.0, np.nan, np.inf):
        wrong[1, 1, 0] = value
        with pytest.raises(ShardInvalid, match="not finite or does not have unit length"):
            store.write_shard(**made, frames=wrong)


def _alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_alter, Path.unlink, lambda path: path.write_bytes(b"")])
def test_damaged_file_is_found(
    store: ShardStore, write_frames: Callable, damage: Callable[[Path], object]
) -> None:
    entry = write_frames(store, IDS).shards["a"]
    store.delete([10])
    damage(store.shard_folder(entry.id) / "frames.npy")
    assert "a" in IndexSnapshot.open(store).degraded
    assert entry.id[:12] in audit(store).damaged_shards["a"]
    with pytest.raises(ShardCorrupt, match=r"altered|missing|bytes"):
        store.compact("a")


def test_file_that_vanishes_while_it_is_served(store: ShardStore, write_frames: Callable) -> None:
    entry = write_frames(store, IDS).shards["a"]
    shard = _shard(store)
    (store.shard_folder(entry.id) / "frames.npy").unlink()
    with pytest.raises(ShardCorrupt, match="its frame vectors cannot be read"):
        shard.frame_vectors(np.array([10]))


def test_backup_and_garbage_collection_include_the_file(store: ShardStore, write_frames: Callable) -> None:
    entry = write_frames(store, IDS).shards["a"]
    path = store.shard_folder(entry.id) / "frames.npy"
    assert list_manifest_files(store, store.manifest())[f"shards/{entry.id}/frames.npy"] == (
        path,
        entry.files["frames.npy"],
    )
    store.delete([10])
    store.compact("a")
    hours_ago = time.time() - 7200
    os.utime(path.parent, (hours_ago, hours_ago))
    store.collect_garbage()
    assert not path.exists()
    assert not audit(store).problems
