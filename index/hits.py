"""Search results: the hits of one shard, and the merged ranking of several shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.vector_ids import Ids, Scores


@dataclass(frozen=True)
class Hits:
    """Ranked results of one query in one shard, best first; equal scores are ordered by ID.

    Attributes:
        ids: ``int64 [n]``, IDs of vectors.
        scores: ``float32 [n]``, inner products with the query.
    """

    ids: Ids
    scores: Scores


NO_HITS = Hits(np.empty(0, np.int64), np.empty(0, np.float32))


@dataclass(frozen=True)
class Hit:
    """One result of a search over several shards."""

    task: str
    id: int
    score: float


def rank_hits(ids: Ids, scores: Scores, k: int) -> Hits:
    """Return the k highest scores with their IDs; equal scores are ordered by ID."""
    order = np.lexsort((ids, -scores))[:k]
    return Hits(ids[order], scores[order])


def combine_hits(rankings: Sequence[Hits], k: int) -> Hits:
    """Return the k best of several rankings that share no ID, such as those of the segments of a shard."""
    if len(rankings) == 1:
        return rankings[0]
    rankings = [NO_HITS, *rankings]
    return rank_hits(
        np.concatenate([hits.ids for hits in rankings]), np.concatenate([hits.scores for hits in rankings]), k
    )


def merge_hits(hits: Mapping[str, Hits], k: int) -> list[Hit]:
    """Return the k best hits of several shards.

    Shards are disjoint, so scores are compared and not ranks: by rank, the best hits of all shards would tie.
    Equal scores are ordered by the order of tasks in ``hits``, then by ID, so that results are repeatable. An ID that
    occurs in several shards counts once, with its best score. Missing results (id −1) are left out.
    """
    if not hits:
        return []
    tasks = list(hits)
    ids = np.concatenate([shard.ids for shard in hits.values()])
    scores = np.concatenate([shard.scores for shard in hits.values()])
    owners = np.repeat(np.arange(len(tasks)), [len(shard.ids) for shard in hits.values()])
    rows = rank_distinct(ids, scores, owners, k)
    ranked = zip(owners[rows].tolist(), ids[rows].tolist(), scores[rows].tolist(), strict=True)
    return [Hit(tasks[owner], vector_id, score) for owner, vector_id, score in ranked]


def rank_distinct(ids: Ids, scores: Scores, owners: npt.NDArray[np.integer], k: int) -> npt.NDArray[np.int64]:
    """Return the rows of the k highest scores; see :func:`merge_hits`.

    Args:
        ids: ``int64 [n]``; -1 for missing results.
        scores: ``float32 [n]``.
        owners: Place of the shard of each result, ``[n]``.
    """
    order = np.lexsort((ids, owners, -scores))
    rows: list[int] = []
    seen: set[int] = {-1}
    for row, vector_id in zip(order.tolist(), ids[order].tolist(), strict=True):
        if len(rows) >= k:
            break
        if vector_id not in seen:
            seen.add(vector_id)
            rows.append(row)
    return np.array(rows, np.int64)
