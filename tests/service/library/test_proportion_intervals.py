"""Intervals of shares, compared with published figures."""

from __future__ import annotations

import pytest

from service.library.recall_matrix import difference_interval, wilson_interval


@pytest.mark.parametrize(
    ("found", "queries", "low", "high"),
    [
        (0, 1, 0.000000, 0.793451),
        (1, 1, 0.206549, 1.000000),
        (0, 29, 0.000000, 0.116970),
        (15, 148, 0.062386, 0.160487),
        (81, 263, 0.255289, 0.366210),
        (500, 500, 0.992376, 1.000000),
    ],
)
def test_interval_of_a_share(found: int, queries: int, low: float, high: float) -> None:
    """The ends are those of scipy's ``binomtest(...).proportion_ci(method="wilson")``."""
    assert wilson_interval(found / queries, queries) == pytest.approx((low, high), abs=1e-6)


def test_interval_of_a_difference_equals_the_published_example() -> None:
    """56/70 against 48/80 has the interval 0.0524 to 0.3339 (Newcombe 1998, table II); here with equal numbers."""
    low, high = difference_interval(0.8, 0.6, 75)
    assert low == pytest.approx(0.0524, abs=5e-3)
    assert high == pytest.approx(0.3339, abs=5e-3)
