"""Reliability of predicted probabilities: expected calibration error, Brier score and area under the ROC curve."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


class Bin(NamedTuple):
    """Predictions within an interval of probabilities.

    Attributes:
        low: Lower bound of the interval.
        high: Upper bound of the interval.
        size: Number of predictions, or the sum of their weights.
        predicted: Mean predicted probability.
        observed: Share of predictions that came true.
    """

    low: float
    high: float
    size: float
    predicted: float
    observed: float


class Reliability(NamedTuple):
    """Agreement of predicted probabilities with outcomes.

    Attributes:
        error: Expected calibration error, 0..1: mean gap between predicted and observed probability of the bins,
            weighted by their size (Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks",
            ICML 2017).
        brier: Mean squared error.
        bins: Bins of equal width; empty bins are omitted.
    """

    error: float
    brier: float
    bins: tuple[Bin, ...]


def reliability(
    predicted: Floats, outcomes: npt.NDArray[np.bool_], bins: int = 10, counts: Floats | None = None
) -> Reliability:
    """Reliability of predictions.

    Args:
        predicted: Predicted probabilities ``[N]``, 0..1.
        outcomes: Whether each prediction came true ``[N]``.
        counts: Weight of each prediction ``[N]``; 1 by default.
    """
    counts = np.ones(len(predicted)) if counts is None else counts
    bin_of = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    filled = tuple(
        Bin(
            b / bins,
            (b + 1) / bins,
            float(counts[here].sum()),
            float(np.average(predicted[here], weights=counts[here])),
            float(np.average(outcomes[here], weights=counts[here])),
        )
        for b in range(bins)
        if (here := bin_of == b).any()
    )
    error = sum(b.size * abs(b.predicted - b.observed) for b in filled) / max(1e-12, counts.sum())
    brier = float(np.average((predicted - outcomes) ** 2, weights=counts)) if len(predicted) else float("nan")
    return Reliability(float(error), brier, filled)


def area_under_roc(predicted: Floats, outcomes: npt.NDArray[np.bool_]) -> float:
    """AUROC: probability that a positive has a higher prediction than a negative; ties count half.

    Args:
        predicted: Predictions ``[N]`` in any unit.
        outcomes: Whether each prediction came true ``[N]``.

    Returns:
        The area, 0..1; NaN if all outcomes are equal.
    """
    order = np.argsort(predicted, kind="stable")
    _, first, counts = np.unique(predicted[order], return_index=True, return_counts=True)
    ranks = np.repeat(first + (counts + 1) / 2, counts)
    positive = outcomes[order]
    n, m = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m)) if n and m else float("nan")
