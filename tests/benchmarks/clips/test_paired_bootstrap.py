"""Bootstrap intervals of paired differences."""

from __future__ import annotations

import pytest

from benchmarks.clips.clip_runs import difference_interval


def test_equal_differences_have_no_spread() -> None:
    assert difference_interval([[3.0, 5.0], [1.0]], [[1.0, 3.0], [-1.0]]) == pytest.approx((2, 2, 2))


def test_domains_or_queries_have_equal_weights() -> None:
    first, second = [[4.0, 4.0, 4.0], [0.0]], [[0.0, 0.0, 0.0], [0.0]]
    assert difference_interval(first, second) == pytest.approx((2, 2, 2))
    assert difference_interval(first, second, pooled=True) == pytest.approx((3, 3, 3))


def test_interval_contains_the_difference_and_repeats() -> None:
    first, second = [[100.0, 0.0, 100.0, 100.0, 0.0]], [[0.0, 0.0, 100.0, 0.0, 100.0]]
    difference, low, high = difference_interval(first, second)
    assert difference == pytest.approx(20)
    assert low < 20 < high
    # Of five queries +100, 0, 0, +100, -100, the mean of a resample is between -100 and 100 in steps of 20.
    assert low == pytest.approx(-40, abs=21)
    assert high == pytest.approx(80, abs=21)
    assert difference_interval(first, second) == (difference, low, high)
