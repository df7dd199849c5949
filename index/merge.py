"""One ranking out of many shards'."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from index.shard import Hits

__all__ = ["Hit", "merge"]


@dataclass(frozen=True)
class Hit:
    """A video found in a task's shard."""

    task: str
    id: int
    score: float


def merge(hits: Mapping[str, Hits], k: int) -> list[Hit]:
    """The k best of all shards.

    Shards are disjoint, so scores and not ranks are compared: by rank, the best hit of every shard would tie.
    Equal scores are ordered by the tasks' order in ``hits``, then by id, so an answer is repeatable. An id
    that several shards claim counts once, at its best.
    """

    def keyed(order: int, task: str, found: Hits) -> Iterator[tuple[float, int, int, str]]:
        rows = zip(found.scores.tolist(), found.ids.tolist(), strict=True)
        yield from sorted((-score, order, vector, task) for score, vector in rows if vector >= 0)

    streams = [keyed(order, task, found) for order, (task, found) in enumerate(hits.items())]
    result: list[Hit] = []
    seen: set[int] = set()
    for negative, _, vector, task in heapq.merge(*streams):
        if len(result) >= k:
            break
        if vector not in seen:
            seen.add(vector)
            result.append(Hit(task, vector, -negative))
    return result
