"""Confidence intervals for shares of queries, and for differences between two shares.

The intervals treat queries as independent. Captions of the same video are not, so a domain's true interval may be
wider.
"""

from __future__ import annotations

from math import hypot, sqrt

_Z = 1.959964  # 97.5th percentile of the normal distribution: intervals cover 95 %


def wilson_interval(share: float, queries: int) -> tuple[float, float]:
    """Compute the 95 % interval of a share: Wilson, "Probable inference" (J. Am. Stat. Assoc. 1927).

    Args:
        share: Measured share, 0..1.
        queries: Number of queries, at least 1.
    """
    spread = _Z * _Z / queries
    center = (share + spread / 2) / (1 + spread)
    margin = sqrt(max(0.0, share * (1 - share) / queries + spread / (4 * queries))) * _Z / (1 + spread)
    return max(0.0, center - margin), min(1.0, center + margin)


def difference_interval(before: float, after: float, queries: int) -> tuple[float, float]:
    """Compute the 95 % interval of ``before - after``: Newcombe, method 10 (Statistics in Medicine 1998).

    Treats the shares as independent samples of equally many queries. For shares of the same queries, the interval is
    too wide rather than too narrow.

    Args:
        before, after: Measured shares, 0..1.
        queries: Number of queries behind each share, at least 1.
    """
    (low, high), (later_low, later_high) = wilson_interval(before, queries), wilson_interval(after, queries)
    difference = before - after
    return (
        difference - hypot(before - low, later_high - after),
        difference + hypot(high - before, after - later_low),
    )
