"""Exact search on the CPU and on a GPU, which numpy simulates, compared with a Python loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from index.errors import DeviceMissing
from index.files.manifest_format import SegmentEntry
from index.index_snapshot import IndexSnapshot
from index.scanning import exact_scan
from index.scanning.exact_scan import (
    ExactScan,
    GpuScan,
    empty_flat_index,
    gpu_resources,
    is_gpu_used,
    widen_half_precision,
)
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import Segment

DIM = 16


def _exact(vectors: np.ndarray) -> ExactScan:
    flat = empty_flat_index(vectors.shape[1])
    flat.add(vectors)
    return ExactScan(flat)


def _brute_force(stored: np.ndarray, query: np.ndarray, alive: np.ndarray) -> list[tuple[float, int]]:
    """List (−score, row) of the live rows, best first, computing products one by one."""
    scores = [sum(float(a) * float(b) for a, b in zip(row, query, strict=True)) for row in stored]
    return sorted((-score, row) for row, score in enumerate(scores) if alive[row])


@pytest.mark.parametrize("share", [None, 0.97, 0.6, 0.1, 0.0])
def test_batched_search_equals_single_search_and_loop(
    unit: Callable, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    monkeypatch.setattr(exact_scan, "BLOCK_BYTES", 4 * DIM * 37)  # blocks start within bytes of the bitmap
    vectors = unit(200, seed=1, dim=DIM)
    alive = np.random.default_rng(2).random(200) < (1 if share is None else share)
    bits = None if share is None else np.packbits(alive, bitorder="little")
    exact, queries = _exact(vectors), unit(9, seed=3, dim=DIM)
    for k in (1, 7, 50, 300):
        many = exact.search_many(queries, k, bits)
        assert len(many) == 9
        for query, (rows, scores) in zip(queries, many, strict=True):
            wanted = _brute_force(vectors, query, alive)[:k]
            assert rows.tolist() == [row for _, row in wanted]
            np.testing.assert_allclose(scores, [-score for score, _ in wanted], atol=1e-6)
            same_rows, same_scores = exact.search(query, k, bits)
            assert (same_rows == rows).all()
            assert (same_scores == scores).all()  # bit for bit


def test_ties_are_ordered_by_row_across_blocks(unit: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_scan, "BLOCK_BYTES", 4 * DIM * 11)
    vectors = np.tile(unit(4, seed=4, dim=DIM), (30, 1))  # 30 copies of each of four
    exact, queries = _exact(vectors), unit(8, seed=5, dim=DIM)
    for k in (1, 5, 29, 31, 64):
        for query, (rows, _) in zip(queries, exact.search_many(queries, k), strict=True):
            order = sorted(range(120), key=lambda row: (-float(vectors[row % 4] @ query), row % 4, row))
            assert rows.tolist() == order[:k]


@pytest.mark.parametrize("count", [0, 1, 16, 17])
def test_few_rows_have_the_scores_of_a_scan(count: int, unit: Callable) -> None:
    vectors = np.repeat(unit(20), 2, axis=0)  # each twice, so that scores tie
    scan, query = _exact(vectors), unit(1, seed=1)[0]
    scores = dict(zip(*scan.search(query, 40), strict=True))
    rows = np.sort(np.random.default_rng(count).permutation(40)[:count])
    best, best_scores = scan.search_rows(query, rows, 40)
    assert best.tolist() == sorted(rows.tolist(), key=lambda row: (-scores[row], row))
    assert best_scores.tolist() == [scores[row] for row in best]
    assert len(scan.search_rows(query, rows, 3)[0]) == min(3, count)


def test_batched_search_is_exact_despite_rounding(unit: Callable) -> None:
    # Rows that only differ in the last bits: a matrix product may order them differently.
    base = unit(1, seed=6, dim=512)[0]
    noise = np.random.default_rng(7).normal(scale=3e-5, size=(500, 512)).astype(np.float32)
    exact, queries = _exact(base + noise), unit(32, seed=8, dim=512)
    for query, (rows, scores) in zip(queries, exact.search_many(queries, 20), strict=True):
        same_rows, same_scores = exact.search(query, 20)
        assert (same_rows == rows).all()
        assert (same_scores == scores).all()


def test_every_finite_number_is_converted_exactly() -> None:
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    stored = numbers[np.isfinite(numbers)].reshape(-1, 32)
    assert len(stored) > 1024  # more rows than are converted at a time
    out = np.empty(stored.shape, np.float32)
    widen_half_precision(stored, out)
    assert np.array_equal(out.view(np.uint32), stored.astype(np.float32).view(np.uint32))


def _open(store: ShardStore, entry: SegmentEntry) -> Segment:
    return Segment.open(store.shard_folder(entry.id), entry)


def _unrounded(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_equal_vectors_have_equal_scores_in_every_row(store: ShardStore) -> None:
    # A scan with a different order of summation in some rows would not order these by ID.
    vectors = np.repeat(_unrounded(1, 515, seed=1), 1003, axis=0)
    entry = store.write_shard(task="t", release="r", fingerprint="f", ids=np.arange(1003), vectors=vectors)
    (hits,) = _open(store, entry).search_many(_unrounded(1, 515, seed=2), 1003)
    assert len(np.unique(hits.scores)) == 1
    assert hits.ids.tolist() == list(range(1003))


class SimulatedResources:
    """Resources of a GPU with a memory of bytes, which scratch memory takes first."""

    created = 0
    free = 1 << 40

    def __init__(self) -> None:
        SimulatedResources.created += 1

    def setTempMemory(self, size: int) -> None:  # noqa: N802 (name in FAISS)
        self.allocate(size)

    def allocate(self, size: int) -> None:
        if size > SimulatedResources.free:
            raise RuntimeError("Error in allocMemory()\nError: cudaMalloc error out of memory [2]")
        SimulatedResources.free -= size


class SimulatedGpuIndex:
    """A flat GPU index: vectors and queries in half precision, ties in any order."""

    searches = 0

    def __init__(self, resources: SimulatedResources, dim: int, config: Any) -> None:
        assert config.useFloat16
        self._resources = resources
        self._vectors = np.empty((0, dim), np.float32)

    def add(self, vectors: np.ndarray) -> None:
        self._resources.allocate(2 * vectors.size)
        self._vectors = np.concatenate([self._vectors, vectors.astype(np.float16).astype(np.float32)])

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        SimulatedGpuIndex.searches += len(queries)
        self._resources.allocate(0)
        scores = queries.astype(np.float16).astype(np.float32) @ self._vectors.T
        rows = np.lexsort((-np.arange(len(self._vectors)) + 0 * scores, -scores))[:, :k]
        return np.take_along_axis(scores, rows, axis=1), rows


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_resources.cache_clear()
    monkeypatch.setattr(SimulatedResources, "created", 0)
    monkeypatch.setattr(SimulatedResources, "free", 1 << 40)
    monkeypatch.setattr(faiss, "StandardGpuResources", SimulatedResources, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatConfig", type("Config", (), {"useFloat16": False}), raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", SimulatedGpuIndex, raising=False)
    SimulatedGpuIndex.searches = 0


def test_missing_gpu_raises_with_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    assert not is_gpu_used("cpu")
    assert not is_gpu_used("auto")
    with pytest.raises(DeviceMissing, match=r"CINESTRATA_INDEX_DEVICE=cuda, .*built without GPU") as built:
        ShardStore(tmp_path, device="cuda")
    assert "CINESTRATA_INDEX_DEVICE=cpu" in str(built.value)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0, raising=False)
    assert not is_gpu_used("auto")
    with pytest.raises(DeviceMissing, match="faiss finds no GPU"):
        is_gpu_used("cuda")


@pytest.mark.parametrize("share", [None, 0.97, 0.2])
def test_gpu_scan_equals_exact_scan(gpu: None, unit: Callable, share: float | None) -> None:
    vectors = unit(2000, seed=1, dim=16)
    vectors[100:130] = vectors[7]  # ties
    exact, is_live = _exact(vectors), np.random.default_rng(2).random(2000) < (share or 0)
    live = None if share is None else np.packbits(is_live, bitorder="little")
    scan = GpuScan(exact)
    half = np.float32(0.9)  # not representable in half precision
    queries = np.concatenate([unit(20, seed=3, dim=16), vectors[[7, 50]]]) * half
    for k in (1, 10, 25, 3000):
        for query, (rows, scores) in zip(queries, scan.search_many(queries, k, live), strict=True):
            wanted_rows, wanted_scores = exact.search(query, k, live)
            assert (rows == wanted_rows).all()
            assert (scores == wanted_scores).all()
    assert SimulatedGpuIndex.searches == 3 * len(queries)  # results of all rows come from the processor


def test_store_searches_on_configured_device(
    gpu: None, store: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    assert [is_gpu_used("cpu"), is_gpu_used("auto"), is_gpu_used("cuda")] == [False, True, True]
    manifest = publish_task(store, "t", range(500))
    answers = []
    for where in ("cpu", "auto"):
        snapshot = IndexSnapshot.open(ShardStore(store.root, device=where))
        answers.append(
            snapshot.shard("t", fingerprint=manifest.shards["t"].fingerprint).search(unit(1)[0], 5)
        )
        assert SimulatedGpuIndex.searches == (where == "auto")
    assert answers[0].ids.tolist() == answers[1].ids.tolist()
    assert answers[0].scores.tolist() == answers[1].scores.tolist()


def test_domains_share_the_scratch_memory_of_a_gpu_and_the_processor_searches_those_without_room(
    gpu: None, store: ShardStore, publish_task: Callable, unit: Callable
) -> None:
    for number, name in enumerate("abc"):
        manifest = publish_task(store, name, range(500 * number, 500 * (number + 1)))
    query = unit(1)[0]
    gpu_resources()
    SimulatedResources.free = 2 * 500 * len(query)  # of one domain
    snapshot = IndexSnapshot.open(ShardStore(store.root, device="cuda"))

    def search(snapshot: IndexSnapshot) -> list[Any]:
        shards = [snapshot.shard(name, fingerprint=manifest.shards[name].fingerprint) for name in "abc"]
        return [(hits.ids.tolist(), hits.scores.tolist()) for hits in (s.search(query, 5) for s in shards)]

    expected = search(IndexSnapshot.open(ShardStore(store.root)))
    assert search(snapshot) == expected
    assert SimulatedResources.created == SimulatedGpuIndex.searches == 1
    assert snapshot.gpu_failures == dict.fromkeys("bc", "its memory is full")
    assert search(snapshot) == expected
    assert SimulatedGpuIndex.searches == 2, "the domain with room stays there"
    SimulatedResources.free = -1  # so that even nothing does not fit
    assert search(snapshot) == expected
    assert snapshot.gpu_failures.keys() == set("abc"), "a search may also find no memory"
