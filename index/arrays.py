"""Array types, vector IDs, and search results.

Each whole video has an ID, and so has each moment of a long video. A whole video has the ID that the catalog assigned,
below 2^46. Its moments have IDs from 2^62 on, 2^16 for each video. An ID therefore shows whether it belongs to a
moment, and of which video. Moment IDs need no registry, are the same whenever a task is learned again, and can never
belong to another video.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]  # vector IDs
Rows = npt.NDArray[np.int64]  # row numbers within a segment
TokenIds = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]  # inner products
Vectors = npt.NDArray[np.float32]  # one vector [dim], or many [n, dim]
Floats = npt.NDArray[np.floating]
Frames = npt.NDArray[np.uint8]  # RGB

Number = TypeVar("Number", bound=np.generic)
Item = TypeVar("Item")


@overload
def batches(items: npt.NDArray[Number], size: int) -> Iterator[npt.NDArray[Number]]: ...
@overload
def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]: ...
def batches(items: Any, size: int) -> Iterator[Any]:
    """Yield consecutive parts of at most ``size`` items; those of an array are views along its first axis."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def find_ids(stored: Ids, wanted: Ids) -> tuple[npt.NDArray[np.bool_], Rows]:
    """Find wanted IDs among distinct, ascending ones: whether each is stored, and the rows of those that are."""
    if not len(stored):
        return np.zeros(len(wanted), np.bool_), np.empty(0, np.int64)
    rows = np.minimum(np.searchsorted(stored, wanted), len(stored) - 1)
    is_stored = np.asarray(stored[rows] == wanted, np.bool_)
    return is_stored, rows[is_stored]


_MOMENT_BITS = 16
FIRST_MOMENT_ID = 1 << 62
MAX_MOMENTS_PER_VIDEO = 1 << _MOMENT_BITS


def moment_ids(video: int, count: int) -> Ids:
    """Compute the IDs of a video's first ``count`` moments, in order of time; raise ValueError."""
    if not 0 <= video < 1 << (62 - _MOMENT_BITS) or not 0 <= count <= MAX_MOMENTS_PER_VIDEO:
        raise ValueError(f"there are no IDs for {count} moments of video {video}")
    return first_moment_ids(np.array([video], np.int64)) + np.arange(count, dtype=np.int64)


def first_moment_ids(videos: Ids) -> Ids:
    """Compute the ID of each video's first moment."""
    return np.asarray(np.int64(FIRST_MOMENT_ID) + (videos << _MOMENT_BITS))


def is_moment(ids: Ids) -> npt.NDArray[np.bool_]:
    """Check whether each ID belongs to a moment rather than to a whole video."""
    return np.asarray(ids >= FIRST_MOMENT_ID)


def video_ids_of(ids: Ids) -> Ids:
    """Map each vector ID to its video: a moment's to the video that contains it, a whole video's to itself."""
    return np.where(is_moment(ids), (ids - FIRST_MOMENT_ID) >> _MOMENT_BITS, ids)


def moment_numbers(ids: Ids) -> Ids:
    """Number each moment within its video, from 0."""
    return np.asarray(ids & (MAX_MOMENTS_PER_VIDEO - 1))


@dataclass(frozen=True)
class Hits:
    """Ranked results of one query in one shard, best first; ties are ordered by ID."""

    ids: Ids  # vector IDs, int64 [n]
    scores: Scores  # inner products with the query, float32 [n]


NO_HITS = Hits(np.empty(0, np.int64), np.empty(0, np.float32))


@dataclass(frozen=True)
class Hit:
    """One result of a search over several shards."""

    task: str
    id: int
    score: float
    # cosine of the video with the query, which the visual part of the score has
    cosine: float = field(default=0.0, compare=False)
    words: float = field(default=0.0, compare=False)  # part of the score that comes from the video's texts


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
