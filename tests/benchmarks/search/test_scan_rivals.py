"""Comparison of exact scans: all libraries find the same results."""

from __future__ import annotations

import faiss
import pytest

from benchmarks.search.scan_rivals import measure
from index.scanning import exact_scan


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(exact_scan, "_is_single_threaded", False)
    before = faiss.omp_get_max_threads()
    yield
    faiss.omp_set_num_threads(before)


def test_all_exact_scans_return_the_same_results() -> None:
    found = measure(700, 16, repeats=2)  # raises where a library misses results
    assert {"shard", "faiss flat", "numpy", "bound"} <= found["1"].keys()
    assert found["1"]["shard"]["ratio"] == found["16"]["shard"]["ratio"] == 1
