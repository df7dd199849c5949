"""Bootstrap interval for the mean difference between two methods on the same queries.

Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), section 13.3, percentile interval. Queries are
resampled within each domain, and each difference is taken on one query, so that the query's difficulty cancels out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_RESAMPLES = 10_000

Interval = tuple[float, float, float]  # difference, lower and upper bound


def difference_interval(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, pooled: bool = False
) -> Interval:
    """Compute the mean difference ``first - second`` with its 95 % bootstrap interval.

    Args:
        first: Value of each query, by domain.
        second: Values of the same queries.
        pooled: Whether every query has the same weight, rather than every domain.
    """
    differences = [np.subtract(a, b, dtype=np.float64) for a, b in zip(first, second, strict=True)]
    sizes = np.array([len(part) for part in differences], np.float64)
    weights = sizes / sizes.sum() if pooled else np.full(len(sizes), 1 / len(sizes))
    rng = np.random.default_rng(0)
    means = np.zeros(_RESAMPLES)
    for part, weight in zip(differences, weights, strict=True):
        distinct, counts = np.unique(part, return_counts=True)  # few values, so their counts are drawn
        drawn = rng.multinomial(len(part), counts / len(part), _RESAMPLES)
        means += weight * (drawn @ distinct) / len(part)
    observed = float(sum(weight * part.mean() for part, weight in zip(differences, weights, strict=True)))
    low, high = np.percentile(means, [2.5, 97.5])
    return observed, float(low), float(high)
