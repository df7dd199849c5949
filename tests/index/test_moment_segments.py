"""Segments of moments are published together with the shard of their videos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from index.arrays import moment_ids, video_ids_of
from index.errors import ShardInvalid, ShardMissing
from index.files.manifest_format import ReleaseEntry, SegmentEntry
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore

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
