"""Galleries that a release is evaluated on: each task's videos, with held-out captions as queries, ranks and recalls.

Recalls are shares, 0..1; the papers print percentages. Measures of forgetting are in
:mod:`models.forgetting_measures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids, Vectors, is_moment
from models.releases.release_state import MeasuredFold
from trainer.errors import EvaluationError
from trainer.task_data import TaskData, vector_ids


class ShardVectors(Protocol):
    """A shard's vectors by ID."""

    @property
    def ids(self) -> Ids: ...

    def vectors(self, ids: Ids) -> Vectors: ...


class WholeVideoShard:
    """A shard without moments: evaluation ranks videos, each by its own vector."""

    def __init__(self, shard: ShardVectors) -> None:
        self._shard = shard

    @cached_property
    def ids(self) -> Ids:
        """Vector IDs of the videos, ``int64 [n]``."""
        every = self._shard.ids
        return every[~is_moment(every)]

    def vectors(self, ids: Ids) -> Vectors:
        """Read the vectors of ``ids``, ``float32 [len(ids), dim]``."""
        return self._shard.vectors(ids)


class FoldShard:
    """A shard with the vectors that a model trained without a fold gives to its videos, where they are stored."""

    def __init__(self, shard: ShardVectors, fold: MeasuredFold) -> None:
        self.ids = shard.ids
        self._shard, self._fold = shard, fold

    def vectors(self, ids: Ids) -> Vectors:
        """Read the vectors of ``ids``, ``float32 [len(ids), dim]``."""
        vectors, is_replaced = self._shard.vectors(ids), np.isin(ids, self._fold.ids)
        vectors[is_replaced] = self._fold.video_vectors(ids[is_replaced])
        return vectors


@dataclass(frozen=True)
class Query:
    """A caption of a held-out video."""

    text: str
    vector_id: int


@dataclass(frozen=True)
class Gallery:
    """A task's videos and queries; raises EvaluationError if a query belongs to a video that is not held out."""

    task: str
    shard: ShardVectors  # vectors of all the task's videos
    held_out: Ids  # vector IDs of the videos that were kept from training, or are in the fold
    # captions of held-out videos; by convention the first of each, but several are possible
    queries: tuple[Query, ...]
    # vectors of the queries for their own task, [Q, dim]; None if the encoder computes them
    query_vectors: Vectors | None = None

    def __post_init__(self) -> None:
        unknown = {query.vector_id for query in self.queries} - {int(i) for i in self.held_out}
        if unknown:
            raise EvaluationError(
                f"task {self.task}: a query belongs to video {min(unknown)}, which is not held out"
            )


def task_gallery(task: TaskData, shard: ShardVectors, captions: int | None = 1) -> Gallery:
    """Build a task's gallery, with its ``test`` videos held out, and the first captions of each; None for all."""
    return Gallery(
        task=task.task_id,
        shard=shard,
        held_out=vector_ids(task.test),
        queries=tuple(
            Query(caption, clip.vector_id) for clip in task.test for caption in clip.captions[:captions]
        ),
    )


# Scores that differ by no more than this are equal, since dot products of float32 unit vectors vary that much with the
# order of summation.
TIE_TOLERANCE = 1e-6


class RankCount:
    """Ranks of each query's one true video in a gallery that is added in parts.

    rank = 1 + number of strictly better videos + half the number of equal ones: the mean position under random order.
    A tie counts as a miss: a video that shares first place has rank 1.5 and is no hit at 1.
    """

    def __init__(self, truth: Floats) -> None:
        self.truth = _finite(np.asarray(truth, np.float64))  # score of each query's true video [Q]
        self.better = np.zeros(len(truth), np.int64)  # number of better videos so far
        self.equal = np.zeros(len(truth), np.int64)  # those with an equal score, including the true video

    def add(self, scores: Floats, queries: slice | npt.NDArray[np.bool_] = slice(None)) -> None:
        """Count n more videos, with their scores ``[q, n]`` for q queries; raise EvaluationError if one is not finite.

        Across all parts, the true video must be added exactly once.
        """
        truth = self.truth[queries, None]
        better = np.count_nonzero(_finite(scores) > truth + TIE_TOLERANCE, axis=1)
        self.better[queries] += better
        self.equal[queries] += np.count_nonzero(scores >= truth - TIE_TOLERANCE, axis=1) - better

    def ranks(self) -> Floats:
        """Compute the ranks ``[Q]``, from 1."""
        if (self.equal < 1).any():
            raise EvaluationError("a query's true video is not in the gallery that it is ranked in")
        return 1.0 + self.better + (self.equal - 1) / 2


def rank_by_id(scores: Floats, gallery: Sequence[int], truth: Sequence[int]) -> Floats:
    """Rank the true videos ``[Q]``, which are given by ID rather than by position.

    Several captions of one video are several queries with the same true video. Higher scores ``[Q, G]`` are better.
    Raises EvaluationError if one is not finite, an ID is in the gallery twice, or a true video is not in it.
    """
    columns = {video: column for column, video in enumerate(gallery)}
    if len(columns) != len(gallery):
        raise EvaluationError("a video is in the gallery twice")
    missing = [video for video in truth if video not in columns]
    if missing:
        raise EvaluationError(f"the true video {missing[0]} is not in the gallery")
    count = RankCount(np.asarray(scores)[np.arange(len(truth)), [columns[video] for video in truth]])
    count.add(scores)
    return count.ranks()


def recall_at(ranks: Floats, k: int) -> float:
    """Compute the share of queries whose true video is among the first k, 0..1."""
    return float(np.mean(np.asarray(ranks) <= k))


@dataclass(frozen=True)
class RankSummary:
    """Retrieval figures for a set of queries: recalls 0..1, median and mean rank from 1."""

    r1: float
    r5: float
    r10: float
    medr: float
    meanr: float
    queries: int


def summarize(ranks: Floats) -> RankSummary | None:
    """Summarize ranks ``[Q]``; None without queries."""
    if not len(ranks):
        return None
    return RankSummary(
        r1=recall_at(ranks, 1),
        r5=recall_at(ranks, 5),
        r10=recall_at(ranks, 10),
        medr=float(np.median(ranks)),
        meanr=float(np.mean(ranks)),
        queries=len(ranks),
    )


def _finite(scores: Floats) -> Floats:
    if scores.size and not np.isfinite([scores.min(), scores.max()]).all():  # either is NaN if any score is
        raise EvaluationError("a score is not a finite number")
    return scores
