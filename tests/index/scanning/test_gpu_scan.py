"""Choice of the device, and exact results from a GPU, which numpy simulates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from index.errors import DeviceMissing
from index.index_snapshot import IndexSnapshot
from index.scanning.exact_scan import ExactScan, GpuScan, empty_flat_index, is_gpu_used
from index.shard_store import ShardStore


class SimulatedGpuIndex:
    """A flat GPU index: vectors and queries in half precision, ties in any order."""

    searches = 0

    def __init__(self, resources: object, dim: int, config: Any) -> None:
        assert config.useFloat16
        self._vectors = np.empty((0, dim), np.float32)

    def add(self, vectors: np.ndarray) -> None:
        self._vectors = np.concatenate([self._vectors, vectors.astype(np.float16).astype(np.float32)])

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        SimulatedGpuIndex.searches += len(queries)
        scores = queries.astype(np.float16).astype(np.float32) @ self._vectors.T
        rows = np.lexsort((-np.arange(len(self._vectors)) + 0 * scores, -scores))[:, :k]
        return np.take_along_axis(scores, rows, axis=1), rows


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
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


def test_available_gpu_is_used(gpu: None) -> None:
    assert [is_gpu_used("cpu"), is_gpu_used("auto"), is_gpu_used("cuda")] == [False, True, True]


@pytest.mark.parametrize("share", [None, 0.97, 0.2])
def test_gpu_scan_equals_exact_scan(gpu: None, unit: Callable, share: float | None) -> None:
    vectors = unit(2000, seed=1, dim=16)
    vectors[100:130] = vectors[7]  # ties
    flat = empty_flat_index(16)
    flat.add(vectors)
    exact = ExactScan(flat)
    live = None
    if share is not None:
        live = np.packbits(np.random.default_rng(2).random(2000) < share, bitorder="little")
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
