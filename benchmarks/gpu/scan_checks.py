"""Check exact scans of many vectors: a GPU gives the CPU's results."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan
from index.scanning.exact_scan import ExactScan, GpuScan, RowHits, empty_flat_index
from models.backbones.tower_computation import compute_device

_DIM = 512  # as in ViT-B/32
_K = 10
_QUERIES = 16  # per batch
_BLOCK = 262_144  # vectors drawn at a time
_LEFT_BYTES = 256 * 1024**2  # of the GPU's memory, less than the vectors take
_RUNS = 5  # at most
_SECONDS = 2.0  # after which no new run begins


def check_scan(plan: GpuPlan, count: int) -> Figures:
    """Scan ``count`` vectors on the CPU, and with faiss on a GPU."""
    device = compute_device(plan.device)
    flat, queries = _draw_vectors(count, device)
    exact = ExactScan(flat)
    figures: Figures = {
        "vectors": count,
        "dimensions": _DIM,
        "cpu_query_ms": _milliseconds(lambda: exact.search(queries[0], _K)),
        "cpu_batch_ms": _milliseconds(lambda: exact.search_many(queries, _K)),
        "batch": _QUERIES,
    }
    if not hasattr(faiss, "StandardGpuResources"):
        figures["faiss_gpu"] = "left out: this build of faiss has no GPU support (faiss-gpu is not installed)"
    elif plan.device == "cuda":
        figures |= _scan_with_faiss(exact, queries, exact.search_many(queries, _K))
    return figures


def _draw_vectors(count: int, device: torch.device) -> tuple[Any, np.ndarray]:
    """Draw random unit vectors as a flat index, and queries near some of them."""
    generator = torch.Generator(device).manual_seed(count)
    flat = empty_flat_index(_DIM)
    queries = torch.empty(0)
    for start in range(0, count, _BLOCK):
        block = torch.randn(min(_BLOCK, count - start), _DIM, generator=generator, device=device)
        block = torch.nn.functional.normalize(block, dim=1)
        flat.add(block.cpu().numpy())
        if start == 0:
            noise = torch.randn(_QUERIES, _DIM, generator=generator, device=device) / _DIM**0.5
            queries = torch.nn.functional.normalize(block[:_QUERIES] + noise, dim=1)
    return flat, queries.cpu().numpy()


def _scan_with_faiss(exact: ExactScan, queries: np.ndarray, expected: list[RowHits]) -> Figures:
    """Copy the vectors to the GPU, compare its results with the CPU's, and time it."""
    began = time.perf_counter()
    scan = GpuScan(exact)
    figures: Figures = {"faiss_gpu_copy_seconds": round(time.perf_counter() - began, 2)}
    results = scan.search_many(queries, _K)
    for one, other in zip(expected, results, strict=True):
        if not (np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])):
            raise CheckFailed("faiss on the GPU returns other rows or scores than the CPU", figures)
    figures["faiss_gpu_query_ms"] = _milliseconds(lambda: scan.search_many(queries[:1], _K))
    figures["faiss_gpu_batch_ms"] = _milliseconds(lambda: scan.search_many(queries, _K))
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - _LEFT_BYTES, dtype=torch.uint8, device="cuda")
    full = GpuScan(exact)
    del taken
    figures["faiss_gpu_without_memory"] = full.failure or "fits"
    if not np.array_equal(full.search_many(queries, _K)[0][0], expected[0][0]):
        raise CheckFailed(
            "vectors that do not fit into the GPU's memory are not searched on the CPU", figures
        )
    return figures


def _milliseconds(run: Callable[[], object]) -> float:
    """Measure the median wall time of several runs, after one to warm up."""
    run()
    times: list[float] = []
    while len(times) < _RUNS and sum(times) < 1000 * _SECONDS:
        began = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - began))
    return round(median(times), 3)
