"""What a search costs from its text to its answer, inside the process that answers it.

Libraries that are compared are asked in turns, query by query, so that whatever else the machine does hits both alike.
Every query is new to the service: nothing is answered from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from benchmarks.search.synthetic_library import Asked, Library
from index.index_snapshot import IndexSnapshot
from index.scanning.search_threads import use_one_thread_per_search
from index.shard_store import ShardStore
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_texts
from service.core.schemas import SearchResponse
from service.search.engine import SearchEngine

__all__ = ["Compared", "Timing", "bound", "compare", "recall_of_routes", "serve"]

Ask = Callable[[str], SearchResponse | None]

_WARM = 20  # queries before anything is timed
K = 10


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a search, medians over rounds.

    Attributes:
        tasks: how many domains a text was encoded for, in the mean.
    """

    p50: float
    p99: float
    tasks: float


@dataclass(frozen=True)
class Compared:
    """Two libraries, or a library and its bound: medians over rounds of the ratios within a round."""

    first: Timing
    second: Timing
    p50_ratio: float
    p99_ratio: float


def serve(library: Library, **changed: object) -> SearchEngine:
    """A query service of this process for a library, warm."""
    use_one_thread_per_search()
    service = SearchEngine(library.configured.model_copy(update=changed))
    service.refresh()
    if service.last_error:
        raise RuntimeError(service.last_error)
    return service


def compare(
    first: Ask,
    second: Ask,
    texts: Sequence[tuple[str, str]],
    rounds: int,
) -> Compared:
    """Ask both in turns.

    Args:
        texts: a query for each; all different. They are dealt out to the rounds.
    """
    for one, other in texts[:_WARM]:
        first(one)
        second(other)
    size = (len(texts) - _WARM) // rounds
    timed: list[tuple[Timing, Timing]] = []
    for number in range(rounds):
        spent: tuple[list[float], list[float]] = ([], [])
        tasks: tuple[list[int], list[int]] = ([], [])
        for pair in texts[_WARM + number * size : _WARM + (number + 1) * size]:
            for place, ask in enumerate((first, second)):
                start = time.perf_counter()
                answer = ask(pair[place])
                spent[place].append(1000 * (time.perf_counter() - start))
                if answer is not None:
                    tasks[place].append(sum(route.searched for route in answer.routing))
        timed.append((_timing(spent[0], tasks[0]), _timing(spent[1], tasks[1])))
    return Compared(
        first=_middle([one for one, _ in timed]),
        second=_middle([other for _, other in timed]),
        p50_ratio=median(other.p50 / one.p50 for one, other in timed),
        p99_ratio=median(other.p99 / one.p99 for one, other in timed),
    )


def bound(library: Library, backbone: Backbone) -> Callable[[str], None]:
    """What no search can do without: one encoding by the frozen text tower, and one scan of all vectors.

    Args:
        library: of a single domain, so that all vectors are in one shard.
    """
    snapshot = IndexSnapshot.open(ShardStore(library.configured.index_dir))
    (task,) = snapshot.tasks
    shard = snapshot.shard(task, fingerprint=snapshot.manifest.shards[task].fingerprint)

    @torch.inference_mode()
    def ask(text: str) -> None:
        vector = encode_texts(backbone, backbone.tokenize([text]))[0, 0]
        shard.search(vector.float().numpy(), K)

    return ask


def recall_of_routes(
    service: SearchEngine, asked: Sequence[Asked], routes: Sequence[str]
) -> dict[str, float]:
    """Share of queries whose video is among the first ten, by which tasks they go to."""
    found: dict[str, list[bool]] = {route: [] for route in routes}
    for one in asked:
        for route in routes:
            answer = service.search(one.text, K, routes=route)
            found[route].append(f"v{one.sought}" in {result.video_id for result in answer.results})
    return {route: float(np.mean(hits)) for route, hits in found.items()}


def _timing(spent: Sequence[float], tasks: Sequence[int]) -> Timing:
    return Timing(
        float(np.percentile(spent, 50)),
        float(np.percentile(spent, 99)),
        float(np.mean(tasks)) if tasks else 1.0,
    )


def _middle(timings: Sequence[Timing]) -> Timing:
    return Timing(
        median(one.p50 for one in timings),
        median(one.p99 for one in timings),
        median(one.tasks for one in timings),
    )
