"""Figures of a phase, and the trend of the memory with its standard error."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.soak.load_generator import RequestRecord
from benchmarks.soak.verdicts import fit_memory_trend, summarize_phase

MIB = 1024**2


def _record(status: int, seconds: float = 0.01, *, retry_after: bool = False) -> RequestRecord:
    return RequestRecord("search", 0.0, 0.002, seconds, status, retry_after)


def test_only_answered_requests_have_latencies() -> None:
    records = [_record(200, n / 1000) for n in range(1, 101)] + [_record(429, 9, retry_after=True)]
    phase = summarize_phase(records, 50)
    assert (phase.requests, phase.answered, phase.refused, phase.errors) == (101, 100, 1, {})
    assert (phase.p50, phase.p99, phase.worst, phase.delay) == (50.5, 99.0, 100.0, 2.0)


def test_outcomes_that_are_neither_answers_nor_refusals_are_errors() -> None:
    phase = summarize_phase([_record(429), _record(503, retry_after=True), _record(0)], 1)
    assert phase.errors == {"429 without Retry-After": 1, "503": 1, "0": 1}
    assert (phase.answered, phase.refused, phase.p99) == (0, 0, None)


def test_slope_and_error_are_those_of_the_least_squares_line() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 0.5, 600)
    trend = fit_memory_trend([(s, int((100 + 3 * s / 60 + noise[s]) * MIB)) for s in range(600)])
    assert trend.slope == pytest.approx(3, abs=3 * trend.error)
    # Standard deviation of the noise over the root of the sum of squared deviations of the minutes.
    assert trend.error == pytest.approx(0.5 / np.sqrt(600 * (600**2 - 1) / 12 / 60**2), rel=0.1)
    assert not trend.is_flat


def test_error_accounts_for_memory_that_changes_in_steps() -> None:
    """A random walk without a trend is flat, and a leak of a tenth of its memory per minute is not."""
    rng = np.random.default_rng(2)
    flat = 0
    for _ in range(50):
        steps = rng.normal(0, 1.0, 600)
        for n in range(1, 600):
            steps[n] += 0.97 * steps[n - 1]
        flat += fit_memory_trend([(s, int((700 + steps[s]) * MIB)) for s in range(600)]).is_flat
        leak = fit_memory_trend([(s, int((700 + 70 * s / 60 + steps[s]) * MIB)) for s in range(600)])
        assert not leak.is_flat
    assert flat >= 45


def test_constant_memory_with_noise_is_flat() -> None:
    rng = np.random.default_rng(2)
    trend = fit_memory_trend([(s, int((100 + rng.normal(0, 0.5)) * MIB)) for s in range(600)])
    assert trend.is_flat


def test_trend_of_two_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="3 samples"):
        fit_memory_trend([(0, 1), (1, 1)])
