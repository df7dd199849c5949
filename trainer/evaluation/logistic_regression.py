"""Weighted logistic regression with non-negative leading weights, by Newton's method."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.routing.answer_model import logistic

__all__ = ["fit_logistic"]

Floats = npt.NDArray[np.floating]

_RIDGE = 1e-3
_MIN_DEVIATION = (
    0.05  # of a feature for its standardization; a nearly constant feature would get a huge weight
)
_MAX_ITERATIONS = 100  # Newton's method converges long before


def fit_logistic(
    features: Floats,
    labels: npt.NDArray[np.bool_],
    counts: Floats,
    nonnegative: int,
    ridge: float = _RIDGE,
) -> tuple[Floats, float]:
    """Fit a logistic regression whose first ``nonnegative`` weights are not negative.

    A weight that would be negative is set to zero and the others are fitted again. The result is the optimum on that
    face of the constraint set, not necessarily the constrained optimum.

    Args:
        features: Features ``[N, F]``.
        labels: Labels ``[N]``.
        counts: Weight of each row ``[N]``.
        nonnegative: Number of leading weights that must not be negative.
        ridge: Penalty on the squared weights of standardized features, for counts with the mean 1.

    Returns:
        Weights ``[F]`` and bias.
    """
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    used = deviation > 1e-9
    deviation = np.maximum(deviation, _MIN_DEVIATION)
    while True:
        scaled = (features[:, used] - mean[used]) / deviation[used]
        fitted = _newton(np.concatenate([scaled, np.ones((len(features), 1))], axis=1), labels, counts, ridge)
        weights = np.zeros(features.shape[1])
        weights[used] = fitted[:-1] / deviation[used]
        negative = np.flatnonzero(weights[:nonnegative] < 0)
        if not len(negative):
            return weights, float(fitted[-1] - weights @ mean)
        used[negative[weights[negative].argmin()]] = False


def _newton(features: Floats, labels: npt.NDArray[np.bool_], counts: Floats, strength: float) -> Floats:
    """Minimizer of the weighted cross-entropy with a ridge penalty on all but the last column."""
    ridge = strength * counts.sum() / len(features) * np.append(np.ones(features.shape[1] - 1), 0.0)
    ridge = np.maximum(ridge, 1e-9)
    weights = np.zeros(features.shape[1])

    def loss(at: Floats) -> float:
        odds = features @ at
        return float(counts @ (np.logaddexp(0, odds) - labels * odds) + 0.5 * (ridge * at) @ at)

    for _ in range(_MAX_ITERATIONS):
        probabilities = logistic(features @ weights)
        gradient = features.T @ (counts * (probabilities - labels)) + ridge * weights
        curvature = (
            features * (counts * probabilities * (1 - probabilities))[:, None]
        ).T @ features + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while loss(weights - size * step) > loss(weights) and size > 1e-6:
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-8:
            break
    return np.asarray(weights)
