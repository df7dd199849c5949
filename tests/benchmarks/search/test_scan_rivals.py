"""Comparison of exact scans: equal results, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import faiss
import numpy as np
import pytest

from benchmarks.search import scan_rivals
from benchmarks.search.scan_rivals import Plan, measure, table, texts_and_videos
from index.scanning import exact_scan


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(exact_scan, "_is_single_threaded", False)
    before = faiss.omp_get_max_threads()
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("shards", [1, 3])
def test_all_exact_scans_return_the_same_results(shards: int) -> None:
    found = measure(Plan(rows=700, dim=16, shards=shards, repeats=2, batches=(1, 9)))
    assert {"shard", "faiss flat", "numpy"} <= found["recall"].keys()
    assert min(found["recall"].values()) >= 0.97  # scans in half precision may order near ties differently
    assert found["exact"]["1"]["shard"]["ratio"] == found["exact"]["9"]["shard"]["ratio"] == 1
    assert all(row["seconds"] > 0 for times in found["exact"].values() for row in times.values())
    assert "bound" in found["exact"]["1"]
    assert json.loads(json.dumps(found))["plan"]["shards"] == shards
    assert all(name in table(found) for name in found["recall"])


def test_synthetic_texts_have_a_modality_gap_and_a_nearest_video() -> None:
    texts, videos = texts_and_videos(3000, 50, 64, seed=1)
    for vectors in (texts, videos):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    among = videos[:200] @ videos[200:].T
    across = texts @ videos.T
    assert across.mean() < among.mean() / 2  # the gap between text and video vectors
    best = across.max(axis=1) - across.mean(axis=1)
    assert (best > 3 * across.std(axis=1)).mean() > 0.5  # one video has a much higher score than the others


def test_command_requires_single_threaded_blas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with pytest.raises(SystemExit):
        scan_rivals.main(["--out", str(tmp_path)])
    assert "set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
