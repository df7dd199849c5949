"""Snapshots of damaged stores, and the release that searches use: pinned, kept by publications and deletions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest

from index.errors import FingerprintMismatch, ManifestError, ReleaseCorrupt, ShardMissing
from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.scanning import exact_scan
from index.shard_store import ShardStore
from tests.index.disk_faults import flip_byte
from tests.index.published_shards import age


@pytest.fixture
def two_tasks(store: ShardStore, publish_task: Callable) -> ShardStore:
    """A store with tasks a and b."""
    publish_task(store, "a", range(0, 5), seed=1)
    publish_task(store, "b", range(5, 9), seed=2)
    return store


def _folder(store: ShardStore, task: str) -> Path:
    return store.shard_folder(store.manifest().shards[task].id)


def _damage(path: Path, harm: str) -> None:
    content = path.read_bytes()
    match harm:
        case "flip":
            flip_byte(path)
        case "remove":
            path.unlink()
        case _:
            path.write_bytes({"truncate": content[:-1], "lengthen": content + b"\0", "empty": b""}[harm])


@pytest.mark.parametrize("name", ["vectors.faiss", "ids.npy", "shard.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "lengthen", "remove", "empty"])
def test_damaged_shard_is_degraded_and_others_are_served(
    two_tasks: ShardStore, unit: Callable, name: str, harm: str
) -> None:
    _damage(_folder(two_tasks, "a") / name, harm)
    snapshot = IndexSnapshot.open(two_tasks)
    assert snapshot.tasks == ["b"]
    assert list(snapshot.degraded) == ["a"]
    assert "of task a" in snapshot.degraded["a"]
    assert name in snapshot.degraded["a"] or "bytes instead of" in snapshot.degraded["a"]
    with pytest.raises(ShardMissing, match="of task a"):
        snapshot.shard("a", fingerprint="encoder of a")
    hits = snapshot.shard("b", fingerprint="encoder of b").search(unit(4, 2)[2], 1)
    assert hits.ids.tolist() == [7]


def test_every_flipped_byte_is_detected(store: ShardStore, publish_task: Callable) -> None:
    empty = IndexSnapshot.open(store)
    assert (empty.generation, empty.manifest.release, empty.tasks) == (0, None, [])
    publish_task(store, "a", range(3))
    for path in _folder(store, "a").iterdir():
        for offset in range(0, path.stat().st_size, 7):
            flip_byte(path, offset)
            assert list(IndexSnapshot.open(store).degraded) == ["a"], (path.name, offset)
            flip_byte(path, offset)
    assert IndexSnapshot.open(store).degraded == {}


def test_missing_and_swapped_shard_folders_are_detected(two_tasks: ShardStore) -> None:
    shutil.rmtree(_folder(two_tasks, "a"))
    assert "folder is missing" in IndexSnapshot.open(two_tasks).degraded["a"]
    # Intact files with correct names, but of another shard.
    shutil.copytree(_folder(two_tasks, "b"), _folder(two_tasks, "a"))
    for verify in (True, False):
        assert list(IndexSnapshot.open(two_tasks, verify=verify).degraded) == ["a"]


def test_foreign_fingerprint_and_unknown_task_raise(two_tasks: ShardStore) -> None:
    snapshot = IndexSnapshot.open(two_tasks)
    with pytest.raises(FingerprintMismatch, match="task a was made by encoder"):
        snapshot.shard("a", fingerprint="encoder of b")
    with pytest.raises(ShardMissing, match="task z has no shard"):
        snapshot.shard("z", fingerprint="")


@pytest.mark.parametrize("harm", ["flip", "remove", "truncate"])
def test_damaged_release_raises(two_tasks: ShardStore, harm: str) -> None:
    snapshot = IndexSnapshot.open(two_tasks)
    assert snapshot.manifest.release is not None
    _damage(two_tasks.release_folder(snapshot.manifest.release) / "weights.safetensors", harm)
    with pytest.raises(ReleaseCorrupt, match=snapshot.manifest.release[:12]):
        snapshot.release_folder(snapshot.manifest.release)
    with pytest.raises(ReleaseCorrupt, match="not in the manifest"):
        snapshot.release_folder("0" * 64)


def test_snapshot_stays_the_same_after_publication(
    two_tasks: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    old = IndexSnapshot.open(two_tasks)
    publish_task(two_tasks, "c", [20])
    new = IndexSnapshot.open(two_tasks, previous=old)
    assert (old.generation, old.tasks) == (2, ["a", "b"])
    assert (new.generation, new.tasks) == (3, ["a", "b", "c"])
    shutil.rmtree(_folder(two_tasks, "a"))  # an open shard survives the loss of its folder
    assert new.shard("a", fingerprint="encoder of a").search(unit(5, 1)[3], 1).ids.tolist() == [3]
    assert old.shard("a", fingerprint="encoder of a").search(unit(5, 1)[3], 1).ids.tolist() == [3]


def test_repaired_shard_is_served_again(two_tasks: ShardStore) -> None:
    path = _folder(two_tasks, "a") / "vectors.faiss"
    flip_byte(path)
    broken = IndexSnapshot.open(two_tasks)
    assert list(broken.degraded) == ["a"]
    flip_byte(path)
    repaired = IndexSnapshot.open(two_tasks, previous=broken)
    assert repaired.degraded == {}
    assert repaired.tasks == ["a", "b"]


def test_foreign_faiss_index_degrades_shard(two_tasks: ShardStore, monkeypatch: pytest.MonkeyPatch) -> None:
    read = faiss.read_index

    def euclidean(*arguments: object) -> faiss.Index:
        flat = read(*arguments)
        other = faiss.IndexFlatL2(flat.d)
        other.add(flat.reconstruct_n(0, flat.ntotal))
        return other

    monkeypatch.setattr(faiss, "read_index", euclidean)
    assert all("vectors.faiss contradicts" in why for why in IndexSnapshot.open(two_tasks).degraded.values())


def test_thread_limit_applies_to_searching_thread(
    two_tasks: ShardStore, unit: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_scan, "_is_single_threaded", False)
    shard = IndexSnapshot.open(two_tasks).shard("a", fingerprint="encoder of a")
    inside: list[int] = []
    after: list[int] = []
    original = faiss.IndexScalarQuantizer.search

    def search(self: faiss.Index, *arguments: object, **named: object) -> object:
        inside.append(faiss.omp_get_max_threads())
        return original(self, *arguments, **named)

    monkeypatch.setattr(faiss.IndexScalarQuantizer, "search", search)

    def run() -> None:
        faiss.omp_set_num_threads(3)
        shard.search(unit(1)[0], 1)
        after.append(faiss.omp_get_max_threads())

    for limited in (False, True):
        if limited:
            exact_scan.use_one_thread_per_search()  # in another thread than the search
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert inside == [3, 1]
    assert after == [3, 3]


def test_open_shard_survives_replacement_of_its_file(two_tasks: ShardStore, unit: Callable) -> None:
    # Reading a truncated mapped file ends the process with SIGBUS, so the search runs in a subprocess.
    path = _folder(two_tasks, "a") / "vectors.faiss"
    program = f"""
import os, sys
from pathlib import Path
import numpy as np
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
shard = IndexSnapshot.open(ShardStore(Path({str(two_tasks.root)!r}))).shard("a", fingerprint="encoder of a")
Path({str(path) + ".x"!r}).write_bytes(b"")
os.replace({str(path) + ".x"!r}, {str(path)!r})
print(shard.search(np.array({unit(5, 1)[4].tolist()}, np.float32), 1).ids.tolist())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[4]"), done.stderr


def test_concurrent_searches_return_same_results(
    store: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    publish_task(store, "a", range(500))
    shard = IndexSnapshot.open(store).shard("a", fingerprint="encoder of a")
    queries = unit(40, seed=3)

    def search(query: np.ndarray) -> list[int]:
        return shard.search(query, 10, exclude=range(0, 500, 3)).ids.tolist()

    expected = list(map(search, queries))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(search, queries)) == expected
    assert not any(number % 3 == 0 for ids in expected for number in ids)
    assert np.unique([len(ids) for ids in expected]).tolist() == [10]


def test_newest_release_is_served_until_an_earlier_one_is_pinned(
    store: ShardStore, publish_task: Callable
) -> None:
    first = publish_task(store, "a", [1]).release
    second = publish_task(store, "b", [2]).release
    assert (store.manifest().served, store.manifest().pinned) == (second, None)
    pinned = store.serve(first)
    assert (pinned.served, pinned.release, pinned.generation) == (first, second, 3)
    assert IndexSnapshot.open(store).manifest.served == first
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
