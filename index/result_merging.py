"""One ranking out of many shards'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from index.scanning.segment import Hits

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
    that several shards claim counts once, at its best. Missing results (id −1) are left out.
    """
    if not hits:
        return []
    tasks = list(hits)
    ids = np.concatenate([found.ids for found in hits.values()])
    scores = np.concatenate([found.scores for found in hits.values()])
    owners = np.repeat(np.arange(len(tasks)), [len(found.ids) for found in hits.values()])
    result: list[Hit] = []
    seen: set[int] = {-1}
    for row in np.lexsort((ids, owners, -scores)):
        if len(result) >= k:
            break
        vector = int(ids[row])
        if vector not in seen:
            seen.add(vector)
            result.append(Hit(tasks[owners[row]], vector, float(scores[row])))
    return result
