"""Measure search latency inside the search engine's process.

Two libraries are compared by alternating queries, so that other load on the machine affects both equally. Every query
is new to the engine, so no response comes from a cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.search.synthetic_library import SyntheticLibrary, TargetedQuery
from cinestrata_schemas.search import SearchResponse
from index.index_snapshot import IndexSnapshot
from index.scanning.exact_scan import use_one_thread_per_search
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts
from service.search.engine import SearchEngine

Search = Callable[[str], SearchResponse | None]

_WARM_UP = 20  # queries before the first measurement
K = 10


class SearchTiming(NamedTuple):
    """Search latency in milliseconds, and the mean number of tasks that a query was encoded for."""

    p50: float
    p99: float
    tasks: float


class LatencyComparison(NamedTuple):
    """The latency of two searches, and the medians over rounds of their ratio within a round."""

    first: SearchTiming
    second: SearchTiming
    p50_ratio: float
    p99_ratio: float


def start_engine(library: SyntheticLibrary, **changed: object) -> SearchEngine:
    """Create a search engine for a library in this process, with its snapshot loaded."""
    use_one_thread_per_search()
    engine = SearchEngine(library.settings.model_copy(update=changed))
    engine.snapshots.refresh()
    if engine.snapshots.last_error:
        raise RuntimeError(engine.snapshots.last_error)
    return engine


def compare_latency(
    first: Search, second: Search, texts: Sequence[tuple[str, str]], rounds: int
) -> LatencyComparison:
    """Measure two searches with alternating queries."""
    for pair in texts[:_WARM_UP]:
        first(pair[0])
        second(pair[1])
    size = (len(texts) - _WARM_UP) // rounds
    timings: list[list[SearchTiming]] = []
    for number in range(rounds):
        measured: list[list[tuple[float, int]]] = [[], []]
        for pair in texts[_WARM_UP + number * size : _WARM_UP + (number + 1) * size]:
            for search, text, own in zip((first, second), pair, measured, strict=True):
                start = time.perf_counter()
                response = search(text)
                milliseconds = 1000 * (time.perf_counter() - start)
                own.append((milliseconds, searched_tasks(response) if response else 1))
        timings.append([_timing(own) for own in measured])
    one, other = (SearchTiming(*map(median, zip(*side, strict=True))) for side in zip(*timings, strict=True))
    p50_ratio, p99_ratio = (median(b[share] / a[share] for a, b in timings) for share in (0, 1))
    return LatencyComparison(one, other, p50_ratio, p99_ratio)


def searched_tasks(response: SearchResponse) -> int:
    """Count the tasks that a query was encoded for."""
    return sum(route.searched for route in response.routing)


def lower_bound_search(library: SyntheticLibrary, backbone: Backbone) -> Callable[[str], None]:
    """Reduce a search to its necessary work: one encoding by the frozen text tower and one scan of all vectors."""
    snapshot = IndexSnapshot.open(ShardStore(library.settings.index_dir))
    (task,) = snapshot.tasks
    shard = snapshot.shard(task, fingerprint=snapshot.manifest.shards[task].fingerprint)

    @torch.inference_mode()
    def search(text: str) -> None:
        vector = encode_texts(backbone, backbone.tokenize([text]))[0, 0]
        shard.search(vector.float().numpy(), K)

    return search


def measure_recall(engine: SearchEngine, queries: Sequence[TargetedQuery], routes: str) -> float:
    """Compute R@10 as a share for a value of the search parameter ``routes``."""
    answers = ((query, engine.search(query.text, K, routes=routes).results) for query in queries)
    return fmean(f"v{query.target}" in {result.video_id for result in results} for query, results in answers)


def _timing(measured: Sequence[tuple[float, int]]) -> SearchTiming:
    milliseconds, tasks = zip(*measured, strict=True)
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return SearchTiming(float(p50), float(p99), fmean(tasks))
