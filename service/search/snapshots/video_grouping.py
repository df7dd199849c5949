"""Hits of moments become hits of videos: every video once, at the best of its whole and its moments.

A video lies in one shard with all of its moments. So hits are grouped shard by shard, before shards are merged: out of
a shard come its best videos, as many as were asked for, and whoever merges shards, or bounds the k-th best of them,
need not know of moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from index.hits import Hits
from index.shards.searchable_shard import SearchableShard
from index.vector_ids import FIRST_MOMENT_ID, is_moment, video_ids_of

__all__ = ["best_per_video", "delete_moments", "has_moments", "nearest"]

Rows = npt.NDArray[np.int64]

_DEEPER = 4  # times as many hits are looked at as videos are wanted, and again where they were too few


def has_moments(shard: SearchableShard) -> bool:
    """Whether a shard may hold moments; told from its entries alone."""
    return any(part.last_id >= FIRST_MOMENT_ID for part in shard.segments)


def best_per_video(hits: Hits) -> Hits:
    """Every video once, at its best; the best first, equal ones by id."""
    videos = video_ids_of(hits.ids)
    order = np.lexsort((videos, -hits.scores))
    _, firsts = np.unique(videos[order], return_index=True)
    best = order[np.sort(firsts)]
    return Hits(videos[best], hits.scores[best])


def delete_moments(hits: Hits) -> Hits:
    """Without moments."""
    whole = ~is_moment(hits.ids)
    return Hits(hits.ids[whole], hits.scores[whole])


def nearest(
    search: Callable[[Rows, int], Sequence[Hits]], count: int, k: int, reduced: Callable[[Hits], Hits]
) -> list[Hits]:
    """For each query the k best of what its hits are reduced to, or all where there are fewer; as of all its hits.

    A list of hits is searched so far down that no hit below it could change them. All queries go the first step
    together, and those that have to go deeper the next one.

    Args:
        search: for these queries the so many best hits of a shard; equal ones by id.
        count: how many queries there are.
        reduced: keeps the best score that it is given, and the order by score, then id.
    """
    found: dict[int, Hits] = {}
    left, depth = np.arange(count), _DEEPER * k
    while len(left):
        for number, hits in zip(left.tolist(), search(left, depth), strict=True):
            best = reduced(hits)
            # A hit of the same score may be of a video that comes before it by id.
            settled = len(best.ids) >= k and hits.scores[-1] < best.scores[k - 1]
            if settled or len(hits.ids) < depth:
                found[number] = Hits(best.ids[:k], best.scores[:k])
        left = left[[number not in found for number in left.tolist()]]
        depth *= _DEEPER
    return [found[number] for number in range(count)]
