"""Measure search latency inside the search engine's process.

Two libraries are compared by alternating queries, so that other load on the machine affects both equally. Every query
is new to the engine, so no response comes from a cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

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


@dataclass(frozen=True)
class SearchTiming:
    """Search latency in milliseconds.

    Attributes:
        p50: Median over the queries.
        p99: 99th percentile over the queries.
        tasks: Mean number of tasks that a query was encoded for.
    """

    p50: float
    p99: float
    tasks: float


@dataclass(frozen=True)
class LatencyComparison:
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
    first: Search,
    second: Search,
    texts: Sequence[tuple[str, str]],
    rounds: int,
) -> LatencyComparison:
    """Measure two searches with alternating queries.

    Args:
        texts: One query for each search, all different, to distribute over the rounds.
    """
    for first_text, second_text in texts[:_WARM_UP]:
        first(first_text)
        second(second_text)
    size = (len(texts) - _WARM_UP) // rounds
    timings: list[tuple[SearchTiming, SearchTiming]] = []
    for number in range(rounds):
        milliseconds: tuple[list[float], list[float]] = ([], [])
        tasks: tuple[list[int], list[int]] = ([], [])
        for pair in texts[_WARM_UP + number * size : _WARM_UP + (number + 1) * size]:
            for index, search in enumerate((first, second)):
                start = time.perf_counter()
                response = search(pair[index])
                milliseconds[index].append(1000 * (time.perf_counter() - start))
                if response is not None:
                    tasks[index].append(sum(route.searched for route in response.routing))
        timings.append((_timing(milliseconds[0], tasks[0]), _timing(milliseconds[1], tasks[1])))
    return LatencyComparison(
        first=_median_timing([one for one, _ in timings]),
        second=_median_timing([other for _, other in timings]),
        p50_ratio=median(other.p50 / one.p50 for one, other in timings),
        p99_ratio=median(other.p99 / one.p99 for one, other in timings),
    )


def lower_bound_search(library: SyntheticLibrary, backbone: Backbone) -> Callable[[str], None]:
    """Reduce a search to its necessary work: one encoding by the frozen text tower and one scan of all vectors.

    Args:
        library: Library with a single task, so that one shard has all vectors.
    """
    snapshot = IndexSnapshot.open(ShardStore(library.settings.index_dir))
    (task,) = snapshot.tasks
    shard = snapshot.shard(task, fingerprint=snapshot.manifest.shards[task].fingerprint)

    @torch.inference_mode()
    def search(text: str) -> None:
        vector = encode_texts(backbone, backbone.tokenize([text]))[0, 0]
        shard.search(vector.float().numpy(), K)

    return search


def recall_by_routing(
    engine: SearchEngine, queries: Sequence[TargetedQuery], routes: Sequence[str]
) -> dict[str, float]:
    """Compute R@10 as a share for each routing option.

    Args:
        engine: The library's search engine.
        routes: Values for the search parameter ``routes``.
    """
    hits: dict[str, list[bool]] = {route: [] for route in routes}
    for query in queries:
        for route in routes:
            response = engine.search(query.text, K, routes=route)
            hits[route].append(f"v{query.target}" in {result.video_id for result in response.results})
    return {route: float(np.mean(route_hits)) for route, route_hits in hits.items()}


def _timing(milliseconds: Sequence[float], tasks: Sequence[int]) -> SearchTiming:
    return SearchTiming(
        float(np.percentile(milliseconds, 50)),
        float(np.percentile(milliseconds, 99)),
        float(np.mean(tasks)) if tasks else 1.0,
    )


def _median_timing(timings: Sequence[SearchTiming]) -> SearchTiming:
    return SearchTiming(
        median(one.p50 for one in timings),
        median(one.p99 for one in timings),
        median(one.tasks for one in timings),
    )
