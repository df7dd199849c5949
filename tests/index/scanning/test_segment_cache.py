"""The segment cache: opening, eviction by bytes, and damaged files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index.errors import ShardCorrupt, ShardMissing
from index.index_snapshot import IndexSnapshot
from index.scanning.segment import Segment
from index.shard_store import ShardStore

TASKS = ["a", "b", "c", "d"]


@pytest.fixture
def opened_tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks in the order in which their segments are opened_tasks."""
    order: list[str] = []
    real = Segment.open.__func__  # type: ignore[attr-defined]

    def watched(cls: type[Segment], folder: Path, entry: object, **named: object) -> Segment:
        order.append(entry.task)  # type: ignore[attr-defined]
        return real(cls, folder, entry, **named)

    monkeypatch.setattr(Segment, "open", classmethod(watched))
    return order


@pytest.fixture
def four_tasks(store: ShardStore, publish_task: Callable) -> ShardStore:
    """A store with four_tasks tasks of five vectors each and the same size on disk."""
    for number, task in enumerate(TASKS):
        publish_task(store, task, range(10 + 5 * number, 15 + 5 * number), seed=number)
    assert len({entry.bytes for entry in store.manifest().shards.values()}) == 1
    return store


def _with_room_for(store: ShardStore, count: float) -> tuple[ShardStore, IndexSnapshot, int]:
    size = store.manifest().shards["a"].bytes
    limited = ShardStore(store.root, max_mapped_bytes=int(count * size))
    return limited, IndexSnapshot.open(limited, verify=False), size


def _search(snapshot: IndexSnapshot, task: str, query: np.ndarray, k: int = 3) -> list[int]:
    return snapshot.shard(task, fingerprint=f"encoder of {task}").search(query, k).ids.tolist()


def test_segments_are_opened_on_first_search(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    store, snapshot, size = _with_room_for(four_tasks, 9)
    assert (opened_tasks, store.segment_cache.bytes) == ([], 0)
    for task in "bbcb":
        _search(snapshot, task, unit(1)[0])
    assert (opened_tasks, store.segment_cache.bytes) == (["b", "c"], 2 * size)


def test_least_recently_searched_segment_is_closed_first(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    # An independent LRU list predicts which searches open a file.
    store, snapshot, size = _with_room_for(four_tasks, 2.5)
    order = np.random.default_rng(3).choice(TASKS, size=60).tolist()
    recent: list[str] = []
    expected: list[str] = []
    for task in order:
        if task in recent:
            recent.remove(task)
        else:
            expected.append(task)
        recent = [*recent, task][-2:]
        _search(snapshot, task, unit(1)[0])
        assert store.segment_cache.bytes <= 2 * size
    assert opened_tasks == expected
    assert 10 < len(expected) < 60  # hits and misses


def test_budget_does_not_change_results(four_tasks: ShardStore, unit: Callable) -> None:
    everything = IndexSnapshot.open(four_tasks)
    for room in (0, 1, 3.5):
        _, snapshot, _ = _with_room_for(four_tasks, room)
        for query in unit(5, seed=9):
            for task in TASKS:
                assert _search(snapshot, task, query) == _search(everything, task, query)


def test_segment_in_use_is_not_closed(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    store, snapshot, size = _with_room_for(four_tasks, 0)
    entry = snapshot.manifest.shards["a"]
    with store.segment_cache.use(store.shard_folder(entry.id), entry) as segment:
        for task in "bcd":
            _search(snapshot, task, unit(1)[0])
            assert store.segment_cache.bytes == size  # only a: segments that are not in use were closed
        with store.segment_cache.use(store.shard_folder(entry.id), entry) as again:
            assert again is segment
        store.segment_cache.retain(set())
        assert store.segment_cache.bytes == size
    assert store.segment_cache.bytes == 0
    assert opened_tasks == ["a", "b", "c", "d"]


def test_new_generation_closes_unreferenced_segments(four_tasks: ShardStore, unit: Callable) -> None:
    store, snapshot, size = _with_room_for(four_tasks, 9)
    for task in "ab":
        _search(snapshot, task, unit(1)[0])
    store.segment_cache.retain({snapshot.manifest.shards["b"].id})
    assert store.segment_cache.bytes == size


def test_concurrent_searches_under_tight_budget_return_same_results(
    four_tasks: ShardStore, unit: Callable
) -> None:
    store, snapshot, _ = _with_room_for(four_tasks, 1)
    queries = unit(30, seed=4)
    expected = {
        task: [_search(IndexSnapshot.open(four_tasks), task, query) for query in queries] for task in TASKS
    }
    found: dict[str, list[list[int]]] = {}
    start = threading.Barrier(len(TASKS))

    def run(task: str) -> None:
        start.wait()
        found[task] = [_search(snapshot, task, query) for query in queries]

    workers = [threading.Thread(target=run, args=(task,)) for task in TASKS]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == expected
    assert store.segment_cache.bytes <= store.manifest().shards["a"].bytes


def test_concurrent_searches_open_segment_once(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    _, snapshot, _ = _with_room_for(four_tasks, 9)
    start = threading.Barrier(6)

    def run() -> None:
        start.wait()
        _search(snapshot, "a", unit(1)[0])

    workers = [threading.Thread(target=run) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert opened_tasks == ["a"]


@pytest.mark.parametrize("harm", ["remove", "truncate", "rubbish"])
def test_segment_damaged_after_snapshot_raises_until_repaired(
    four_tasks: ShardStore, unit: Callable, harm: str
) -> None:
    store, snapshot, _ = _with_room_for(four_tasks, 9)
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
    assert store.segment_cache.bytes == 0
    path.write_bytes(whole)
    assert _search(snapshot, "a", query) == expected


def test_next_snapshot_reopens_degraded_shard(four_tasks: ShardStore, unit: Callable) -> None:
    _, snapshot, _ = _with_room_for(four_tasks, 9)
    snapshot.mark_degraded("b", "it was gone")
    assert snapshot.tasks == ["a", "c", "d"]
    with pytest.raises(ShardMissing, match="it was gone"):
        snapshot.shard("b", fingerprint="encoder of b")
    assert IndexSnapshot.open(four_tasks, previous=snapshot).tasks == TASKS
    four_tasks.manifest_path.write_bytes(four_tasks.manifest_path.read_bytes())
    path = four_tasks.shard_folder(snapshot.manifest.shards["b"].id) / "ids.npy"
    path.unlink()
    assert list(IndexSnapshot.open(four_tasks, previous=snapshot).degraded) == ["b"]


def _vectors_of(store: ShardStore, task: str) -> Path:
    return store.shard_folder(store.manifest().shards[task].id) / "vectors.faiss"


def test_truncated_mapped_file_is_not_read(four_tasks: ShardStore, unit: Callable) -> None:
    store, snapshot, size = _with_room_for(four_tasks, 9)
    query = unit(1)[0]
    before = {task: _search(snapshot, task, query) for task in TASKS}
    file = _vectors_of(store, "b")
    whole = file.read_bytes()
    with file.open("r+b") as cut:
        cut.truncate(50)
    for _ in range(2):
        with pytest.raises(ShardCorrupt, match=r"instead of .* restore it from a backup"):
            _search(snapshot, "b", query)
        assert store.segment_cache.bytes == 3 * size
    assert [_search(snapshot, task, query) for task in "acd"] == [before[task] for task in "acd"]
    file.write_bytes(whole)
    assert _search(snapshot, "b", query) == before["b"]
    assert store.segment_cache.bytes == 4 * size


def test_replaced_mapped_file_is_reopened(
    four_tasks: ShardStore, opened_tasks: list[str], unit: Callable
) -> None:
    store, snapshot, _ = _with_room_for(four_tasks, 9)
    query = unit(1)[0]
    before = _search(snapshot, "b", query)
    file = _vectors_of(store, "b")
    restored = file.with_name("restored")
    restored.write_bytes(file.read_bytes())
    with file.open("r+b") as cut:
        cut.truncate(50)
    restored.replace(file)
    assert _search(snapshot, "b", query) == before
    assert _search(snapshot, "b", query) == before
    assert opened_tasks == ["b", "b"]


def test_removed_mapped_file_stays_searchable(four_tasks: ShardStore, unit: Callable) -> None:
    store, snapshot, _ = _with_room_for(four_tasks, 9)
    query = unit(1)[0]
    before = _search(snapshot, "b", query)
    _vectors_of(store, "b").unlink()
    assert _search(snapshot, "b", query) == before
