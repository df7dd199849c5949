"""Group hits by video: list each video once, with the best score of the video and its moments.

A video and its moments are in one shard, so hits are grouped within each shard before shards are merged: a shard's
result is its k best videos, and neither merging nor the bound on the k-th best score needs to know about moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from index.arrays import Rows
from index.hits import Hits
from index.vector_ids import is_moment, video_ids_of

_DEPTH_FACTOR = 4  # hits fetched per requested video; the depth grows by it if they were too few


def best_per_video(hits: Hits) -> Hits:
    """Keep the best hit of each video, best first, then by ID."""
    videos = video_ids_of(hits.ids)
    order = np.lexsort((videos, -hits.scores))
    _, firsts = np.unique(videos[order], return_index=True)
    best = order[np.sort(firsts)]
    return Hits(videos[best], hits.scores[best])


def drop_moments(hits: Hits) -> Hits:
    """Keep the hits of whole videos."""
    is_whole = ~is_moment(hits.ids)
    return Hits(hits.ids[is_whole], hits.scores[is_whole])


def nearest_videos(
    search: Callable[[Rows, int], Sequence[Hits]], count: int, k: int, group: Callable[[Hits], Hits]
) -> list[Hits]:
    """Find each query's k best videos, or all if there are fewer, as if every vector were scored.

    Hits are fetched to a growing depth, until no deeper hit can change the result. All queries share the first fetch,
    and those that need more depth share the next.

    Args:
        search: Finds a shard's best hits, best first, then by ID, given the query numbers and the number of hits.
        count: Number of queries.
        k: Number of videos per query.
        group: Reduces hits to videos, keeping the best score and the order.
    """
    results: dict[int, Hits] = {}
    remaining, depth = np.arange(count), _DEPTH_FACTOR * k
    while len(remaining):
        for number, hits in zip(remaining.tolist(), search(remaining, depth), strict=True):
            videos = group(hits)
            # A deeper hit with the same score may belong to a video that precedes the k-th by ID.
            is_final = len(videos.ids) >= k and hits.scores[-1] < videos.scores[k - 1]
            if is_final or len(hits.ids) < depth:
                results[number] = Hits(videos.ids[:k], videos.scores[:k])
        remaining = remaining[[number not in results for number in remaining.tolist()]]
        depth *= _DEPTH_FACTOR
    return [results[number] for number in range(count)]
