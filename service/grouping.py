"""Hits of moments become hits of videos: every video once, at the best of its whole and its moments.

A video lies in one shard with all of its moments. So hits are grouped shard by shard, before shards are merged: out of
a shard come its best videos, as many as were asked for, and whoever merges shards, or bounds the k-th best of them,
need not know of moments.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from index import FIRST_MOMENT, Hits, Shard, are_moments, videos_of

__all__ = ["by_video", "has_moments", "nearest", "whole_videos"]

_DEEPER = 4  # times as many hits are looked at as videos are wanted, and again where they were too few


def has_moments(shard: Shard) -> bool:
    """Whether a shard may hold moments; told from its entries alone."""
    return any(part.last_id >= FIRST_MOMENT for part in shard.parts)


def by_video(hits: Hits) -> Hits:
    """Every video once, at its best; the best first, equal ones by id."""
    videos = videos_of(hits.ids)
    order = np.lexsort((videos, -hits.scores))
    _, firsts = np.unique(videos[order], return_index=True)
    best = order[np.sort(firsts)]
    return Hits(videos[best], hits.scores[best])


def whole_videos(hits: Hits) -> Hits:
    """Without moments."""
    whole = ~are_moments(hits.ids)
    return Hits(hits.ids[whole], hits.scores[whole])


def nearest(search: Callable[[int], Hits], k: int, reduced: Callable[[Hits], Hits]) -> Hits:
    """The k best of what hits are reduced to, or all where there are fewer; the same as of all hits together.

    A list of hits is searched so far down that no hit below it could change them.

    Args:
        search: the so many best hits of a shard; equal ones by id.
        reduced: keeps the best score that it is given, and the order by score, then id.
    """
    depth = _DEEPER * k
    while True:
        hits = search(depth)
        found = reduced(hits)
        # A hit of the same score may be of a video that comes before it by id.
        settled = len(found.ids) >= k and hits.scores[-1] < found.scores[k - 1]
        if settled or len(hits.ids) < depth:
            return Hits(found.ids[:k], found.scores[:k])
        depth *= _DEEPER
