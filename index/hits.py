"""Search results: the hits in one shard, and the merged ranking over several shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from index.arrays import Ids, Scores


@dataclass(frozen=True)
class Hits:
    """Ranked results of one query in one shard, best first; ties are ordered by ID.

    Attributes:
        ids: Vector IDs, ``int64 [n]``.
        scores: Inner products with the query, ``float32 [n]``.
    """

    ids: Ids
    scores: Scores


NO_HITS = Hits(np.empty(0, np.int64), np.empty(0, np.float32))


@dataclass(frozen=True)
class Hit:
    """One result of a search over several shards.

    Attributes:
        cosine: Cosine of the video with the query, which the visual part of the score has.
        words: Part of the score that comes from the video's texts.
    """

    task: str
    id: int
    score: float
    cosine: float = field(default=0.0, compare=False)
    words: float = field(default=0.0, compare=False)


def rank_hits(ids: Ids, scores: Scores, k: int) -> Hits:
    """Keep the k highest scores with their IDs; ties are ordered by ID."""
    order = np.lexsort((ids, -scores))[:k]
    return Hits(ids[order], scores[order])


def combine_hits(rankings: Sequence[Hits], k: int) -> Hits:
    """Keep the k best of several rankings that share no ID, such as those of a shard's segments."""
    if len(rankings) == 1:
        return rankings[0]
    rankings = [NO_HITS, *rankings]
    return rank_hits(
        np.concatenate([hits.ids for hits in rankings]), np.concatenate([hits.scores for hits in rankings]), k
    )


def merge_hits(hits: Mapping[str, Hits], k: int) -> list[Hit]:
    """Merge the hits of several shards, and keep the k best.

    Shards are disjoint, so scores are compared rather than ranks: by rank, the best hits of all shards would tie.
    Ties are ordered as the tasks are in ``hits``, then by ID, so that results are repeatable. An ID in several shards
    counts once, with its best score. Missing results (ID −1) are left out.
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
    """Find the rows of the k highest scores, each ID once; see :func:`merge_hits`.

    Args:
        ids: ``int64 [n]``; −1 for missing results.
        scores: ``float32 [n]``.
        owners: Position of each result's shard, ``[n]``.
    """
    order = np.lexsort((ids, owners, -scores))
    rows: dict[int, int] = {-1: -1}  # by ID; missing results count as listed
    for row, vector_id in zip(order.tolist(), ids[order].tolist(), strict=True):
        if len(rows) > k:
            break
        rows.setdefault(vector_id, row)
    return np.array(list(rows.values())[1:], np.int64)
