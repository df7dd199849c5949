"""Retrieval and forgetting measures. Recalls are shares, 0..1; the papers print percents.

A[i][t] is the Recall@1 of release i on the queries of task t, both counted from 0 here; entries above the
diagonal are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.errors import EvaluationError

__all__ = [
    "Matrix",
    "RankCount",
    "Recall",
    "backward_forgetting",
    "forgetting_rate",
    "forgetting_rates",
    "harmonic_mean",
    "learning_gain",
    "mean_current",
    "mean_final",
    "rank_by_id",
    "recall_at",
    "summarise",
]

Floats = npt.NDArray[np.floating]
Matrix = Sequence[Sequence[float | None]]

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
        self._truth = _finite(np.asarray(truth, np.float64))
        self._better = np.zeros(len(truth), np.int64)
        self._equal = np.zeros(len(truth), np.int64)

    def add(self, scores: Floats) -> None:
        """Count ``[Q, n]`` scores of n more videos; the true video is among the parts exactly once."""
        over = _finite(np.asarray(scores, np.float64)) - self._truth[:, None]
        self._better += (over > TIE).sum(axis=1)
        self._equal += (np.abs(over) <= TIE).sum(axis=1)

    def ranks(self) -> Floats:
        """``[Q]`` ranks, from 1."""
        if (self._equal < 1).any():
            raise EvaluationError("a query's true video is not in the gallery that it is ranked against")
        return 1.0 + self._better + (self._equal - 1) / 2


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


def summarise(ranks: Floats) -> Recall | None:
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


def backward_forgetting(matrix: Matrix) -> float | None:
    """BWF_T = mean over t < T of A[t][t] − A[T][t] (ctvr-ffa-tame); lower is better, below 0 is a gain.

    None before the second task. Over the local matrix it is BWF local, over the global one BWF global.
    """
    rates = [rate for rate in forgetting_rates(matrix)[:-1] if rate is not None]
    return float(np.mean(rates)) if rates else None


def forgetting_rates(matrix: Matrix) -> list[float | None]:
    """FR_t = A[t][t] − A[n][t] of every task, n the last release (bmu-moco); not clipped at 0.

    None where a task has no queries.
    """
    if not matrix:
        return []
    last = matrix[-1]
    return [_minus(matrix[task][task], last[task]) for task in range(len(matrix))]


def forgetting_rate(matrix: Matrix) -> float | None:
    """FR: the sum of the tasks' forgetting rates (bmu-moco; a sum and not a mean). None before the second task."""
    rates = [rate for rate in forgetting_rates(matrix)[:-1] if rate is not None]
    return float(sum(rates)) if rates else None


def mean_current(matrix: Matrix) -> float | None:
    """Mean over t of A[t][t]: how well each task was found when it had just been learned."""
    return _mean([row[task] for task, row in enumerate(matrix)])


def mean_final(matrix: Matrix) -> float | None:
    """Mean over t of A[n][t]: how well the tasks are found now."""
    return _mean(list(matrix[-1])) if matrix else None


def harmonic_mean(matrix: Matrix) -> float | None:
    """HM = 2cf / (c + f) of mean current and mean final recall (bmu-moco); 0 when both are."""
    current, final = mean_current(matrix), mean_final(matrix)
    if current is None or final is None:
        return None
    return 2 * current * final / (current + final) if current + final else 0.0


def learning_gain(matrix: Matrix, zero_shot: Sequence[float | None]) -> float | None:
    """Mean over t of A[t][t] − Z[t]: what learning a task adds to the backbone as it came."""
    gains = [_minus(row[t], z) for t, (row, z) in enumerate(zip(matrix, zero_shot, strict=True))]
    return _mean(gains)


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _finite(scores: Floats) -> Floats:
    if not np.isfinite(scores).all():
        raise EvaluationError("a score is not a finite number")
    return scores
