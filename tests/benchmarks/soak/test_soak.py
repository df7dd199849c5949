"""The load generator against a small server, the figures of a phase with verdicts, and a short load of a service."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.soak.run_soak import MemoryTrend, PhaseOutcome, fit_memory_trend, judge, main

MIB = 1024**2
GOOD = PhaseOutcome(1000, 1000, 0, {}, 20.0, 100.0, [100.0], [62.5], MemoryTrend(500, 500, 0.01, 0.2))
OVERLOAD = replace(GOOD, answered=600, refused=400, p99=2900.0)


def _unmet(
    steady: PhaseOutcome = GOOD,
    alone: PhaseOutcome = GOOD,
    learning: PhaseOutcome = GOOD,
    overload: PhaseOutcome = OVERLOAD,
    recovery: float = 1.0,
) -> list[str]:
    verdicts = judge(steady, alone, learning, overload, recovery)
    return [verdict.requirement.partition(":")[0] for verdict in verdicts if not verdict.is_met]


def test_slope_and_error_are_those_of_the_least_squares_line() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 0.5, 600)
    trend = fit_memory_trend([(s, int((100 + 3 * s / 60 + noise[s]) * MIB)) for s in range(600)])
    assert trend.slope == pytest.approx(3, abs=3 * trend.error)
    # Standard deviation of the noise over the root of the sum of squared deviations of the minutes.
    assert trend.error == pytest.approx(0.5 / np.sqrt(600 * (600**2 - 1) / 12 / 60**2), rel=0.1)
    assert not trend.is_flat


@pytest.mark.parametrize("change", [{"refused": 1}, {"errors": {"0": 1}}])
def test_refusals_and_errors_are_not_allowed_below_the_capacity(change: dict[str, Any]) -> None:
    bad = replace(GOOD, **change)
    assert _unmet(bad, bad, bad) == ["steady", "alone", "learning"]


def test_memory_latencies_and_recovery_are_bounded() -> None:
    growing = replace(GOOD, memory=MemoryTrend(500, 520, 5, 0.2))
    late = replace(OVERLOAD, p99=3001.0, errors={"503": 1})
    assert _unmet(growing, learning=replace(GOOD, p99s=[201.0]), overload=late, recovery=5.1) == [
        "steady",
        "learning",
        "overload",
        "overload",
        "recovery within 5 s",
    ]
    assert _unmet(overload=replace(OVERLOAD, answered=0, p99=None)) == ["overload"]


def test_latency_beside_a_task_is_that_of_most_rounds() -> None:
    alone = replace(GOOD, p99s=[100.0, 50.0, 100.0])
    assert _unmet(alone=alone, learning=replace(GOOD, p99s=[199.0, 500.0, 150.0])) == []
    assert _unmet(alone=alone, learning=replace(GOOD, p99s=[199.0, 101.0, 201.0])) == ["learning"]
    assert _unmet(alone=alone, learning=replace(GOOD, p99s=[100.0, None, None])) == ["learning"]


@pytest.mark.endurance
@pytest.mark.timeout(1800)
def test_short_soak_reports_each_phase(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    with suppress(SystemExit):  # a busy machine misses the times, which no test asserts
        main(["--duration", "60s", "--out", str(out)])
    report = json.loads(out.read_text())
    assert report["learned_tasks"] >= 1
    for phase in ("steady", "alone", "learning", "overload"):
        assert min(report[phase]["capacities"]) > 0
        assert report[phase]["answered"] > 0
        assert report[phase]["errors"] == {}
    assert len(report["rows"]) == 8
