"""Measures of retrieval; those of forgetting are handed on from :mod:`models.forgetting_measures`.

Recalls are shares, 0..1; the papers print percents.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from models.forgetting_measures import (
    Matrix,
    backward_forgetting,
    forgetting_rate,
    forgetting_rates,
    forward_transfer,
    harmonic_mean,
    learning_gain,
    mean_current,
    mean_final,
)
from trainer.errors import EvaluationError

__all__ = [
    "Matrix",
    "PrecisionCount",
    "RankCount",
    "Recall",
    "TopItems",
    "average_precision",
    "backward_forgetting",
    "forgetting_rate",
    "forgetting_rates",
    "forward_transfer",
    "handicapped",
    "harmonic_mean",
    "learning_gain",
    "mean_angle",
    "mean_average_precision",
    "mean_current",
    "mean_final",
    "rank_by_id",
    "recall_at",
    "skewness",
    "summarize",
]

Floats = npt.NDArray[np.floating]
Counts = TypeVar("Counts")

# Dot products of float32 unit vectors differ by about this much with the order of summation, so closer scores
# are equal scores.
TIE = 1e-6


class RankCount:
    """The rank of each query's one true video, counted over a gallery that arrives in parts.

    rank = 1 + number of strictly better videos + half the number of equal ones: the mean position under
    random order. A tie counts against us: a video that shares the first place has rank 1.5 and is no hit
    at 1.

    Args:
        truth: ``[Q]`` score of each query's true video.
    """

    def __init__(self, truth: Floats) -> None:
        self.truth = _finite(np.asarray(truth, np.float64))
        self.better = np.zeros(len(truth), np.int64)
        self.equal = np.zeros(len(truth), np.int64)

    def __getitem__(self, queries: slice) -> RankCount:
        """Some of the queries; what is counted for them is counted here."""
        return _view(self, queries)

    def add(self, scores: Floats, skip: npt.NDArray[np.bool_] | None = None) -> None:
        """Count ``[Q, n]`` scores of n more videos; the true video is among the parts exactly once.

        Args:
            skip: ``[Q, n]``, those that do not compete: further right answers.
        """
        truth = self.truth[:, None]
        better, level = _finite(scores) > truth + TIE, scores >= truth - TIE
        if skip is not None:
            better, level = better & ~skip, level & ~skip
        found = np.count_nonzero(better, axis=1)
        self.better += found
        self.equal += np.count_nonzero(level, axis=1) - found

    def ranks(self) -> Floats:
        """``[Q]`` ranks, from 1."""
        if (self.equal < 1).any():
            raise EvaluationError("a query's true video is not in the gallery that it is ranked against")
        return 1.0 + self.better + (self.equal - 1) / 2


def rank_by_id(scores: Floats, gallery: Sequence[int], truth: Sequence[int]) -> Floats:
    """Ranks ``[Q]`` of the true videos, found by id and never by position.

    Several captions of one video are several queries with the same truth.

    Args:
        scores: ``[Q, G]``, higher is better.
        gallery: G video ids, each once.
        truth: Q video ids.

    Raises:
        EvaluationError: a score is not finite, an id is twice in the gallery, or a true one is not in it.
    """
    columns = {video: column for column, video in enumerate(gallery)}
    if len(columns) != len(gallery):
        raise EvaluationError("a video is in the gallery twice")
    missing = [video for video in truth if video not in columns]
    if missing:
        raise EvaluationError(f"the true video {missing[0]} is not in the gallery")
    own = np.asarray(scores)[np.arange(len(truth)), [columns[video] for video in truth]]
    count = RankCount(own)
    count.add(scores)
    return count.ranks()


def recall_at(ranks: Floats, k: int) -> float:
    """Share of queries whose true video is among the first k, 0..1."""
    return float(np.mean(np.asarray(ranks) <= k))


@dataclass(frozen=True)
class Recall:
    """R@1, R@5 and R@10 as shares, 0..1; median and mean rank, from 1; number of queries."""

    r1: float
    r5: float
    r10: float
    medr: float
    meanr: float
    queries: int


def summarize(ranks: Floats) -> Recall | None:
    """The usual five figures; None without queries."""
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


def mean_average_precision(scores: Floats, relevant: npt.NDArray[np.bool_], k: int) -> float | None:
    """mAP@k, 0..1: how early the first k places hold what is relevant, where a query has several right answers.

    AP@k = Σ_{i ≤ k} rel(i) P(i) / min(k, R), with P(i) the share of relevant items among the first i, and R the number
    of relevant items in the gallery: a query that has only right answers in its first k places scores 1. (The code
    published with CTP divides by the number of hits among the first k instead, so that one hit at rank 1 is worth as
    much as k of them; figures in its tables are higher for that.) A tie counts against us: of equal scores, the
    irrelevant ones come first. Queries without a relevant item are left out; None if that leaves none.

    Args:
        scores: ``[Q, G]``, higher is better.
        relevant: ``[Q, G]``.
    """
    found = PrecisionCount(k, len(scores))
    found.add(scores, relevant)
    precisions = found.at(k)
    return float(precisions.mean()) if len(precisions) else None


def handicapped(scores: Floats, relevant: npt.NDArray[np.bool_]) -> Floats:
    """Scores by which a relevant item comes behind every irrelevant one that it is equal to."""
    return _finite(np.asarray(scores, np.float64)) - TIE * np.asarray(relevant)


def average_precision(hits: npt.NDArray[np.bool_], totals: npt.NDArray[np.int64], k: int) -> Floats:
    """AP@k ``[Q]`` of ranked lists, as in :func:`mean_average_precision`.

    Args:
        hits: ``[Q, n]``, whether the item at each rank is relevant; n ≥ min(k, gallery).
        totals: ``[Q]``, number of relevant items in the gallery, at least one.
    """
    first = hits[:, :k]
    precision = first.cumsum(axis=1) / np.arange(1, first.shape[1] + 1)
    return np.asarray((precision * first).sum(axis=1) / np.minimum(k, totals))


class TopItems:
    """The k best items of each of Q queries, found over a gallery that arrives in parts.

    Attributes:
        scores: ``[Q, k]``, best first; −∞ where the gallery has fewer items.
        marks: ``[Q, k]``, what the parts said of these items; −1 where it has fewer.
    """

    def __init__(self, k: int, queries: int) -> None:
        self.scores: Floats = np.full((queries, k), -np.inf)
        self.marks = np.full((queries, k), -1, np.int64)

    def __getitem__(self, queries: slice) -> TopItems:
        """Some of the queries; what is found for them is found here."""
        return _view(self, queries)

    def add(self, scores: Floats, marks: npt.NDArray[np.int64]) -> None:
        """Consider ``[Q, n]`` scores of n more items, with a mark for each, ``[n]`` or ``[Q, n]``."""
        k = self.scores.shape[1]
        together = np.concatenate([self.scores, scores], axis=1)
        marks = np.concatenate([self.marks, np.broadcast_to(marks, scores.shape)], axis=1)
        if together.shape[1] > k:
            kept = np.argpartition(-together, k - 1, axis=1)[:, :k]
            together, marks = _take(together, kept), _take(marks, kept)
        order = np.argsort(-together, axis=1, kind="stable")
        self.scores[:], self.marks[:] = _take(together, order), _take(marks, order)


class PrecisionCount:
    """AP@k of each of Q queries, as in :func:`mean_average_precision`, over a gallery that arrives in parts.

    Attributes:
        totals: ``[Q]``, number of relevant items so far.
        best: the k best items; marked 1 where relevant.
    """

    def __init__(self, k: int, queries: int) -> None:
        self.totals = np.zeros(queries, np.int64)
        self.best = TopItems(k, queries)

    def __getitem__(self, queries: slice) -> PrecisionCount:
        """Some of the queries; what is found for them is found here."""
        return _view(self, queries)

    def add(self, scores: Floats, relevant: npt.NDArray[np.bool_]) -> None:
        """Consider ``[Q, n]`` scores of n more items, and which are relevant, ``[Q, n]``."""
        self.totals += np.count_nonzero(relevant, axis=1)
        self.best.add(handicapped(scores, relevant), np.asarray(relevant, np.int64))

    def at(self, k: int) -> Floats:
        """AP@k, of the queries that have something relevant."""
        known = self.totals > 0
        return average_precision(self.best.marks[known] == 1, self.totals[known], k)


def skewness(occurrences: npt.NDArray[np.integer]) -> float | None:
    """Hubness: skewness E[(N_k − μ)³] / σ³ of the k-occurrence distribution.

    Radovanović, Nanopoulos and Ivanović, "Hubs in space: popular nearest neighbors in high-dimensional data" (JMLR
    2010), section 2. Far above 0, few items are among the k nearest of many queries. None where all items occur
    equally often.

    Args:
        occurrences: N_k of every gallery item: for how many queries it is among the k nearest.
    """
    over = occurrences - occurrences.mean() if len(occurrences) else np.zeros(1)
    deviation = float(np.sqrt((over**2).mean()))
    return float((over**3).mean()) / deviation**3 if deviation else None


def mean_angle(before: Floats, after: Floats) -> float | None:
    """Query drift: the mean angle in degrees between vectors ``[Q, dim]`` and what became of them; None without any.

    By the half angle, since the arc cosine of a rounded 1 would see drift where there is none.
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
    if scores.size and not np.isfinite([scores.min(), scores.max()]).all():  # either is nan if any is
        raise EvaluationError("a score is not a finite number")
    return scores


def _take(values: npt.NDArray[Any], columns: npt.NDArray[np.integer]) -> npt.NDArray[Any]:
    return np.take_along_axis(values, columns, axis=1)


def _view(counts: Counts, queries: slice) -> Counts:
    """The same measure of some queries, on the same memory."""
    part = copy(counts)
    for name, values in vars(counts).items():
        setattr(part, name, values[queries])
    return part
