"""The segment cache: opening, closing, and damaged files."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.errors import ShardCorrupt, ShardMissing
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import Segment

TASKS = ["a", "b", "c", "d"]

Watch = Callable[[Callable[[str], object]], None]


@pytest.fixture
def watch_opening(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Calls a function with the task of each segment before it is opened."""
    real = Segment.open.__func__  # type: ignore[attr-defined]

    def watch(call: Callable[[str], object]) -> None:
        def watched(cls: type[Segment], folder: Path, entry: Any, **named: object) -> Segment:
            call(entry.task)
            return real(cls, folder, entry, **named)

        monkeypatch.setattr(Segment, "open", classmethod(watched))

    return watch


@pytest.fixture
def opened_tasks(watch_opening: Watch) -> list[str]:
    """Tasks in the order in which their segments are opened."""
    order: list[str] = []
    watch_opening(order.append)
    return order


@pytest.fixture
def four_tasks(store: ShardStore, publish_task: Callable) -> ShardStore:
    """A store with four tasks of five vectors each."""
    for number, task in enumerate(TASKS):
        publish_task(store, task, range(10 + 5 * number, 15 + 5 * number), seed=number)
    return store


def _unopened(store: ShardStore) -> tuple[ShardStore, IndexSnapshot]:
    """Open another store on the same folder, and its snapshot, with all segments still closed."""
    other = ShardStore(store.root)
    return other, IndexSnapshot.open(other, verify=False)


def _search(snapshot: IndexSnapshot, task: str, query: np.ndarray, k: int = 3) -> list[int]:
    return snapshot.shard(task, fingerprint=f"encoder of {task}").search(query, k).ids.tolist()


def test_segments_are_opened_on_first_search(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    _, snapshot = _unopened(four_tasks)
    assert opened_tasks == []
    for task in "bbcb":
        _search(snapshot, task, unit(1)[0])
    assert opened_tasks == ["b", "c"]


def test_new_generation_closes_unreferenced_segments_after_their_last_search(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    store, snapshot = _unopened(four_tasks)
    (query,), entries = unit(1), snapshot.manifest.shards
    expected = _search(snapshot, "a", query)
    used = store.segment_cache.get(store.shard_folder(entries["a"].id), entries["a"])
    closed = weakref.ref(used)
    for task in "bc":
        _search(snapshot, task, query)
    store.segment_cache.retain({entries["b"].id})
    assert used.search_many(query[None], 3)[0].ids.tolist() == expected
    del used
    assert closed() is None
    for task in "abc":
        _search(snapshot, task, query)
    assert opened_tasks == ["a", "b", "c", "a", "c"]


def test_concurrent_searches_open_segment_once(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    _, snapshot = _unopened(four_tasks)
    start = threading.Barrier(6)

    def run() -> None:
        start.wait()
        _search(snapshot, "a", unit(1)[0])

    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(run) for _ in range(6)]:
            done.result()
    assert opened_tasks == ["a"]


@pytest.mark.parametrize("harm", ["remove", "truncate", "rubbish"])
def test_segment_damaged_after_snapshot_raises_until_repaired(
    four_tasks: ShardStore, unit: Callable, harm: str
) -> None:
    _, snapshot = _unopened(four_tasks)
    path = four_tasks.shard_folder(snapshot.manifest.shards["a"].id) / "vectors.faiss"
    whole = path.read_bytes()
    query = unit(1)[0]
    expected = _search(IndexSnapshot.open(four_tasks), "a", query)
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(whole[:-1] if harm == "truncate" else b"\0" * len(whole))
    for _ in range(2):
        with pytest.raises((ShardCorrupt, ShardMissing), match="of task a"):
            _search(snapshot, "a", query)
    path.write_bytes(whole)
    assert _search(snapshot, "a", query) == expected


def test_next_snapshot_reopens_degraded_shard(four_tasks: ShardStore, unit: Callable) -> None:
    _, snapshot = _unopened(four_tasks)
    snapshot.mark_degraded("b", "it was gone")
    assert snapshot.tasks == ["a", "c", "d"]
    with pytest.raises(ShardMissing, match="it was gone"):
        snapshot.shard("b", fingerprint="encoder of b")
    assert IndexSnapshot.open(four_tasks, previous=snapshot).tasks == TASKS
    four_tasks.manifest_path.write_bytes(four_tasks.manifest_path.read_bytes())
    path = four_tasks.shard_folder(snapshot.manifest.shards["b"].id) / "ids.npy"
    path.unlink()
    assert list(IndexSnapshot.open(four_tasks, previous=snapshot).degraded) == ["b"]


def test_truncated_mapped_file_is_not_read_and_replaced_one_is_reopened(
    four_tasks: ShardStore, watch_opening: Watch, unit: Callable
) -> None:
    store, snapshot = _unopened(four_tasks)
    query = unit(1)[0]
    before = {task: _search(snapshot, task, query) for task in TASKS}
    entry = snapshot.manifest.shards["b"]
    file = store.shard_folder(entry.id) / "vectors.faiss"
    restored = file.with_name("restored")
    restored.write_bytes(file.read_bytes())
    stale = weakref.ref(store.segment_cache.get(store.shard_folder(entry.id), entry))
    opened: list[tuple[str, Segment | None]] = []
    watch_opening(lambda task: opened.append((task, stale())))
    with file.open("r+b") as cut:
        cut.truncate(50)
    for _ in range(2):
        with pytest.raises(ShardCorrupt, match=r"instead of .* restore it from a backup"):
            _search(snapshot, "b", query)
    assert [_search(snapshot, task, query) for task in "acd"] == [before[task] for task in "acd"]
    restored.replace(file)
    for _ in range(2):
        assert _search(snapshot, "b", query) == before["b"]
    assert opened == [("b", None)] * 3, "closed before it is opened again: a GPU need not hold two copies"
