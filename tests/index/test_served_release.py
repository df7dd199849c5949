"""The release that searches use: pinned by an operator, kept by publications, deletions and garbage collection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from index.errors import ManifestError, ReleaseCorrupt
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from tests.index.published_shards import age


def test_newest_release_is_served_until_an_earlier_one_is_pinned(
    store: ShardStore, publish_task: Callable
) -> None:
    first = publish_task(store, "a", [1]).release
    second = publish_task(store, "b", [2]).release
    assert (store.manifest().served, store.manifest().pinned) == (second, None)
    pinned = store.serve(first)
    assert (pinned.served, pinned.release, pinned.generation) == (first, second, 3)
    assert IndexSnapshot.open(store).served_release_id == first
    assert store.serve(first).generation == 3  # no change, no new generation
    assert store.serve(None).served == second
    assert store.manifest().pinned is None


def test_pin_outlasts_publication_deletion_and_compaction(store: ShardStore, publish_task: Callable) -> None:
    first = publish_task(store, "a", [1, 2]).release
    publish_task(store, "b", [3])
    store.serve(first)
    store.delete([2])
    store.compact("a")
    manifest = publish_task(store, "c", [4])
    assert (manifest.served, manifest.release) == (first, manifest.shards["c"].release)
    assert manifest.releases_after(first) == [manifest.shards[task].release for task in ("b", "c")]


def test_publication_and_rollback_at_the_same_time_lose_nothing(
    store: ShardStore, publish_task: Callable, write: Callable
) -> None:
    first = publish_task(store, "a", [1]).release
    publish_task(store, "b", [2])
    written = [write(store, f"t{number}", [10 + number]) for number in range(6)]
    together = threading.Barrier(2)

    def publish() -> None:
        together.wait()
        for release, shard in written:
            store.publish(release=release, shards=[shard])

    def roll() -> None:
        together.wait()
        for _ in range(6):
            store.serve(None)
            store.serve(first)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(run) for run in (publish, roll)]:
            done.result()
    manifest = store.manifest()
    assert list(manifest.shards) == ["a", "b", *(f"t{number}" for number in range(6))]
    assert (manifest.served, manifest.release) == (first, written[-1][0].id)
    assert store.serve(None).served == written[-1][0].id


def test_garbage_collection_keeps_pinned_and_later_releases(
    store: ShardStore, publish_task: Callable
) -> None:
    first = publish_task(store, "a", [1]).release
    second = publish_task(store, "b", [2]).release
    assert first is not None
    assert second is not None
    store.serve(first)
    age(*store.folders())
    store.collect_garbage()
    assert store.release_folder(first).is_dir()
    assert store.release_folder(second).is_dir()
    assert IndexSnapshot.open(store).degraded == {}


def test_damaged_or_unknown_release_is_not_served(store: ShardStore, publish_task: Callable) -> None:
    first = publish_task(store, "a", [1]).release
    before = publish_task(store, "b", [2])
    assert first is not None
    with pytest.raises(ReleaseCorrupt, match="is not in the manifest"):
        store.serve("0" * 64)
    (store.release_folder(first) / "release.json").write_text("altered")
    with pytest.raises(ReleaseCorrupt, match="restore it from a backup"):
        store.serve(first)
    assert store.manifest() == before


def test_manifest_with_unknown_pinned_release_is_refused(store: ShardStore, publish_task: Callable) -> None:
    text = replace(publish_task(store, "a", [1]), pinned="0" * 64).dumps()
    with pytest.raises(ManifestError, match="pins a release that it does not list"):
        Manifest.loads(text)
