"""Rate of a stage: constant and changed rates, several workers, resumed stages, pauses."""

from __future__ import annotations

import pickle
from collections.abc import Iterable

import numpy as np
import pytest

from service.tasks.estimates.progress_rate import ProgressRate
from tests.service.tasks.estimates.fake_clock import FakeClock

TOLERANCE = 0.25


def _ratios(steps: Iterable[tuple[float, float]]) -> dict[float, float | None]:
    """Estimated by true seconds left after each report, by the share of the stage.

    Args:
        steps: Seconds before each report, and its share.
    """
    steps = list(steps)
    clock = FakeClock()
    rate = ProgressRate(clock)
    left = sum(seconds for seconds, _ in steps)
    ratios: dict[float, float | None] = {}
    for seconds, share in steps:
        clock.advance(seconds)
        left -= seconds
        rate.observe(share)
        if left > 1e-9:
            ratios[share] = None if rate.seconds_left is None else rate.seconds_left / left
    return ratios


def _largest_error(ratios: dict[float, float | None], first: float, last: float = 1.0) -> float:
    """Largest relative error between two shares; every report in between must have an estimate."""
    errors = [
        abs(ratio - 1) if ratio is not None else 9.9 for s, ratio in ratios.items() if first <= s <= last
    ]
    assert errors
    return max(errors)


def _evenly(count: int, seconds: float, first: float = 0.0) -> list[tuple[float, float]]:
    return [(seconds, first + (1 - first) * number / count) for number in range(count + 1)]


@pytest.mark.parametrize("seconds", [0.001, 0.5, 40.0])
def test_constant_rate_gives_the_exact_time(seconds: float) -> None:
    assert _largest_error(_ratios(_evenly(200, seconds)), 0.1) < 1e-6


def test_rate_is_unknown_before_three_reports_after_the_first_growth() -> None:
    ratios = _ratios([(0, 0.0), (1, 0.01), (1, 0.02), (1, 0.03), (1, 0.04), (1, 1.0)])
    assert [ratio is None for ratio in ratios.values()] == [True, True, True, True, False]
    silent = ProgressRate(FakeClock())
    for _ in range(10):
        silent.observe(0.0)
    assert (silent.per_second, silent.seconds_left) == (None, None)


def test_cold_first_item_does_not_count() -> None:
    steps = _evenly(100, 0.1)
    steps[1] = (20.0, steps[1][1])
    assert _largest_error(_ratios(steps), 0.1) < 1e-6


@pytest.mark.parametrize("heavy_tail", [0.5, 1.0])
def test_items_of_different_duration_keep_the_estimate_true(heavy_tail: float) -> None:
    seconds = np.random.default_rng(3).lognormal(0, heavy_tail, 2000) / 10
    steps = [(0.0, 0.0), *((float(taken), (n + 1) / 2000) for n, taken in enumerate(seconds))]
    assert _largest_error(_ratios(steps), 0.1, 0.95) < TOLERANCE


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_changed_rate_replaces_the_former_one(factor: float) -> None:
    # 1000 items of one second; the rate changes after 400 of them.
    steps = [(1.0 if n <= 400 else factor, n / 1000) for n in range(1001)]
    ratios = _ratios(steps)
    assert _largest_error(ratios, 0.65) < TOLERANCE
    lifelong = ((400 + 250 * factor) / 650) / factor
    assert abs(lifelong - 1) > TOLERANCE, "an estimate over the whole stage would be wrong here"


def test_lumps_of_several_workers_keep_the_estimate_true() -> None:
    # Three workers finish chunks of 64 videos at different rates; only whole chunks are seen.
    ends = sorted(64 * pace * number for pace in (0.5, 0.8, 1.3) for number in range(1, 200))[:157]
    steps = [(0.0, 0.0)]
    for number, end in enumerate(ends):
        steps.append((end - (ends[number - 1] if number else 0.0), (number + 1) / len(ends)))
    assert _largest_error(_ratios(steps), 0.1, 0.9) < TOLERANCE


def test_progress_before_a_kill_does_not_count() -> None:
    # The first report of the next worker has the progress of the former one.
    assert _largest_error(_ratios(_evenly(100, 2.0, first=0.6)), 0.65) < 1e-6


def test_progress_that_was_lost_starts_a_new_measurement() -> None:
    clock = FakeClock()
    rate = ProgressRate(clock)
    shares = [n / 100 for n in range(51)] + [n / 100 for n in range(30, 61)]
    for number, share in enumerate(shares):
        clock.advance(1.0 if number <= 50 else 3.0)
        rate.observe(share)
        if number == 52:
            assert rate.seconds_left is None
    assert rate.seconds_left == pytest.approx(3.0 * 40)


def test_pause_does_not_count() -> None:
    steps = _evenly(100, 1.0)
    steps[40] = (3600.0, steps[40][1])
    ratios = _ratios(steps)
    assert _largest_error({share: r for share, r in ratios.items() if share >= 0.4}, 0.4) < 1e-6


def test_second_long_gap_is_a_new_rate() -> None:
    steps = [(1.0 if n <= 50 else 60.0, n / 100) for n in range(101)]
    ratios = _ratios(steps)
    assert ratios[0.52] is None
    assert _largest_error(ratios, 0.6, 0.99) < 1e-6


def test_short_regular_interruptions_count() -> None:
    # A checkpoint of 8 seconds after every ten steps of a second.
    steps = [(9.0 if n % 10 == 0 and n else 1.0, n / 400) for n in range(401)]
    assert _largest_error(_ratios(steps), 0.1, 0.9) < TOLERANCE


def test_reports_at_any_frequency_need_little_memory() -> None:
    clock = FakeClock()
    rate = ProgressRate(clock)
    for number in range(200_000):
        clock.advance(0.0005)
        rate.observe(number / 1_000_000)
    assert rate.seconds_left == pytest.approx(0.0005 * 800_001, rel=0.01)
    assert len(pickle.dumps(rate)) < 20_000
