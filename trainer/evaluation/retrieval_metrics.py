"""Retrieval measures: ranks, recall, mean average precision, hubness and query drift.

Recalls are shares, 0..1; the papers print percentages. Measures of forgetting are in
:mod:`models.forgetting_measures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from index.arrays import Floats
from trainer.errors import EvaluationError

Counts = TypeVar("Counts")

# Scores that differ by no more than this are equal, since dot products of float32 unit vectors vary that much with the
# order of summation.
TIE_TOLERANCE = 1e-6


class RankCount:
    """Ranks of each query's one true video in a gallery that is added in parts.

    rank = 1 + number of strictly better videos + half the number of equal ones: the mean position under random order.
    A tie counts as a miss: a video that shares first place has rank 1.5 and is no hit at 1.

    Args:
        truth: Score of each query's true video ``[Q]``.

    Attributes:
        truth: Score of each query's true video ``[Q]``, double precision.
        better: Number of better videos so far ``[Q]``.
        equal: Number of videos with an equal score so far ``[Q]``, including the true video.
    """

    def __init__(self, truth: Floats) -> None:
        self.truth = _finite(np.asarray(truth, np.float64))
        self.better = np.zeros(len(truth), np.int64)
        self.equal = np.zeros(len(truth), np.int64)

    def __getitem__(self, queries: slice) -> RankCount:
        """View some of the queries, on the same memory."""
        return _view(self, queries)

    def add(self, scores: Floats, skip: npt.NDArray[np.bool_] | None = None) -> None:
        """Count n more videos. Across all parts, the true video must be added exactly once.

        Args:
            scores: Scores of the videos ``[Q, n]``.
            skip: Videos that do not compete because they are relevant too ``[Q, n]``.

        Raises:
            EvaluationError: A score is not finite.
        """
        truth = self.truth[:, None]
        better, level = _finite(scores) > truth + TIE_TOLERANCE, scores >= truth - TIE_TOLERANCE
        if skip is not None:
            better, level = better & ~skip, level & ~skip
        better_count = np.count_nonzero(better, axis=1)
        self.better += better_count
        self.equal += np.count_nonzero(level, axis=1) - better_count

    def ranks(self) -> Floats:
        """Compute the ranks ``[Q]``, from 1."""
        if (self.equal < 1).any():
            raise EvaluationError("a query's true video is not in the gallery that it is ranked in")
        return 1.0 + self.better + (self.equal - 1) / 2


def rank_by_id(scores: Floats, gallery: Sequence[int], truth: Sequence[int]) -> Floats:
    """Rank the true videos ``[Q]``, which are given by ID rather than by position.

    Several captions of one video are several queries with the same true video.

    Args:
        scores: Scores ``[Q, G]``; higher is better.
        gallery: IDs of the G videos, each once.
        truth: ID of each query's true video.

    Raises:
        EvaluationError: A score is not finite, an ID is in the gallery twice, or a true video is not in it.
    """
    columns = {video: column for column, video in enumerate(gallery)}
    if len(columns) != len(gallery):
        raise EvaluationError("a video is in the gallery twice")
    missing = [video for video in truth if video not in columns]
    if missing:
        raise EvaluationError(f"the true video {missing[0]} is not in the gallery")
    true_scores = np.asarray(scores)[np.arange(len(truth)), [columns[video] for video in truth]]
    count = RankCount(true_scores)
    count.add(scores)
    return count.ranks()


def recall_at(ranks: Floats, k: int) -> float:
    """Compute the share of queries whose true video is among the first k, 0..1."""
    return float(np.mean(np.asarray(ranks) <= k))


@dataclass(frozen=True)
class Recall:
    """Retrieval figures for a set of queries. Recalls are 0..1.

    Attributes:
        medr: Median rank, from 1.
        meanr: Mean rank, from 1.
    """

    r1: float
    r5: float
    r10: float
    medr: float
    meanr: float
    queries: int


def summarize(ranks: Floats) -> Recall | None:
    """Summarize ranks ``[Q]``; None without queries."""
    if not len(ranks):
        return None
    return Recall(
        r1=recall_at(ranks, 1),
        r5=recall_at(ranks, 5),
        r10=recall_at(ranks, 10),
        medr=float(np.median(ranks)),
        meanr=float(np.mean(ranks)),
        queries=len(ranks),
    )


def penalize_relevant(scores: Floats, relevant: npt.NDArray[np.bool_]) -> Floats:
    """Lower the scores of relevant items so that each ranks behind all irrelevant items with an equal score."""
    return _finite(np.asarray(scores, np.float64)) - TIE_TOLERANCE * np.asarray(relevant)


def average_precision(hits: npt.NDArray[np.bool_], totals: npt.NDArray[np.int64], k: int) -> Floats:
    """Compute AP@k ``[Q]``, 0..1, for queries with several relevant items.

    AP@k = Σ_{i ≤ k} rel(i) P(i) / min(k, R), with P(i) the share of relevant items among the first i, and R the number
    of relevant items in the gallery: a query whose first k items are all relevant scores 1. (The code published with
    CTP divides by the number of hits among the first k instead, so that one hit at rank 1 is worth as much as k hits;
    its figures are therefore higher.)

    Args:
        hits: Whether the item at each rank is relevant ``[Q, n]``; n ≥ min(k, gallery).
        totals: Number of relevant items in the gallery ``[Q]``, at least one.
        k: Depth of the ranking.
    """
    first = hits[:, :k]
    precision = first.cumsum(axis=1) / np.arange(1, first.shape[1] + 1)
    return np.asarray((precision * first).sum(axis=1) / np.minimum(k, totals))


class TopItems:
    """The k best items for each of Q queries, in a gallery that is added in parts.

    Args:
        k: Number of items per query.

    Attributes:
        scores: Scores, best first ``[Q, k]``; −∞ where the gallery has fewer items.
        items: Numbers of these items ``[Q, k]``; −1 where the gallery has fewer items.
    """

    def __init__(self, k: int, queries: int) -> None:
        self.scores: Floats = np.full((queries, k), -np.inf)
        self.items = np.full((queries, k), -1, np.int64)

    def __getitem__(self, queries: slice) -> TopItems:
        """View some of the queries, on the same memory."""
        return _view(self, queries)

    def add(self, scores: Floats, items: npt.NDArray[np.int64]) -> None:
        """Consider n more items, with scores ``[Q, n]`` and numbers ``[n]`` or ``[Q, n]``."""
        k = self.scores.shape[1]
        merged = np.concatenate([self.scores, scores], axis=1)
        items = np.concatenate([self.items, np.broadcast_to(items, scores.shape)], axis=1)
        if merged.shape[1] > k:
            kept = np.argpartition(-merged, k - 1, axis=1)[:, :k]
            merged, items = _take(merged, kept), _take(items, kept)
        order = np.argsort(-merged, axis=1, kind="stable")
        self.scores[:], self.items[:] = _take(merged, order), _take(items, order)


class PrecisionCount:
    """AP@k of Q queries, as in :func:`average_precision`, in a gallery that is added in parts.

    Args:
        k: Depth of the ranking.

    Attributes:
        totals: Number of relevant items so far ``[Q]``.
        best: The k best items so far, numbered 1 if relevant and 0 otherwise.
    """

    def __init__(self, k: int, queries: int) -> None:
        self.totals = np.zeros(queries, np.int64)
        self.best = TopItems(k, queries)

    def __getitem__(self, queries: slice) -> PrecisionCount:
        """View some of the queries, on the same memory."""
        return _view(self, queries)

    def add(self, scores: Floats, relevant: npt.NDArray[np.bool_]) -> None:
        """Consider n more items with scores ``[Q, n]`` and relevance ``[Q, n]``."""
        self.totals += np.count_nonzero(relevant, axis=1)
        self.best.add(penalize_relevant(scores, relevant), np.asarray(relevant, np.int64))

    def at(self, k: int) -> Floats:
        """Compute AP@k for the queries that have a relevant item."""
        has_relevant = self.totals > 0
        return average_precision(self.best.items[has_relevant] == 1, self.totals[has_relevant], k)


def skewness(occurrences: npt.NDArray[np.integer]) -> float | None:
    """Compute hubness: the skewness E[(N_k − μ)³] / σ³ of the k-occurrence distribution.

    Radovanović, Nanopoulos and Ivanović, "Hubs in space: popular nearest neighbors in high-dimensional data" (JMLR
    2010), section 2. A value far above 0 means that a few items are among the k nearest of many queries. None if all
    items occur equally often.

    Args:
        occurrences: N_k of each gallery item: the number of queries that have it among their k nearest.
    """
    over = occurrences - occurrences.mean() if len(occurrences) else np.zeros(1)
    deviation = float(np.sqrt((over**2).mean()))
    return float((over**3).mean()) / deviation**3 if deviation else None


def mean_angle(before: Floats, after: Floats) -> float | None:
    """Compute the mean angle in degrees between vectors ``[Q, dim]`` before and after; None without vectors.

    The half angle is used because the arc cosine of a rounded 1 would show drift where there is none.
    """
    if not len(before):
        return None
    a, b = (
        v / np.linalg.norm(v, axis=1, keepdims=True)
        for v in (np.asarray(x, np.float64) for x in (before, after))
    )
    halves = np.arctan2(np.linalg.norm(a - b, axis=1), np.linalg.norm(a + b, axis=1))
    return float(np.degrees(2 * halves).mean())


def _finite(scores: Floats) -> Floats:
    if scores.size and not np.isfinite([scores.min(), scores.max()]).all():  # either is NaN if any score is
        raise EvaluationError("a score is not a finite number")
    return scores


def _take(values: npt.NDArray[Any], columns: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
    return np.take_along_axis(values, columns, axis=1)


def _view(counts: Counts, queries: slice) -> Counts:
    """Slice a measure to some queries, on the same memory."""
    part = copy(counts)
    for name, values in vars(counts).items():
        setattr(part, name, values[queries])
    return part
