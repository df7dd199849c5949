"""Verdicts of measured phases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.soak.verdicts import MemoryTrend, PhaseOutcome, PhaseStatistics, RoundFigures, judge


def _rounds(*p99s: float | None) -> list[RoundFigures]:
    return [RoundFigures(62.5, 100, 0, p99, 0.0) for p99 in p99s]


STATISTICS = PhaseStatistics(50, 1000, 1000, 0, {}, 20.0, 100.0, 150.0, 1.0)
GOOD = PhaseOutcome(STATISTICS, MemoryTrend(500, 500, 0.01, 0.2, 100), _rounds(100.0), 1.0, 0.1)
OVERLOAD = replace(GOOD, statistics=replace(STATISTICS, answered=600, refused=400, p99=2900.0))


def _unmet(
    steady: PhaseOutcome = GOOD,
    alone: PhaseOutcome = GOOD,
    learning: PhaseOutcome = GOOD,
    overload: PhaseOutcome = OVERLOAD,
    recovery: float = 1.0,
) -> list[str]:
    verdicts = judge(steady, alone, learning, overload, recovery)
    return [verdict.requirement for verdict in verdicts if not verdict.is_met]


def test_good_phases_meet_all_requirements() -> None:
    assert _unmet() == []


@pytest.mark.parametrize("change", [{"refused": 1}, {"errors": {"0": 1}}])
def test_refusals_and_errors_are_not_allowed_below_the_capacity(change: dict[str, object]) -> None:
    bad = replace(GOOD, statistics=replace(STATISTICS, **change))  # type: ignore[arg-type]
    assert [text.partition(":")[0] for text in _unmet(bad, bad, bad)] == [
        "steady",
        "alone",
        "learning",
    ]


def test_growing_memory_is_not_flat() -> None:
    assert _unmet(steady=replace(GOOD, memory=MemoryTrend(500, 520, 5, 0.2, 100))) == [
        "steady: memory is flat"
    ]


def test_latencies_and_recovery_are_bounded() -> None:
    slow = replace(GOOD, rounds=_rounds(201.0))
    late = replace(OVERLOAD, statistics=replace(STATISTICS, p99=3001.0, errors={"503": 1}))
    assert _unmet(learning=slow, overload=late, recovery=5.1) == [
        "learning: p99 at most 2 times that just before (median of the rounds)",
        "overload: only answers, and 429 with Retry-After",
        "overload: p99 of answers at most 3000 ms",
        "recovery within 5 s",
    ]


def test_phase_without_answers_meets_no_latency() -> None:
    silent = replace(OVERLOAD, statistics=replace(STATISTICS, answered=0, p50=None, p99=None, worst=None))
    assert _unmet(overload=silent) == ["overload: p99 of answers at most 3000 ms"]


def test_latency_beside_a_task_is_that_of_most_rounds() -> None:
    alone = replace(GOOD, rounds=_rounds(100.0, 50.0, 100.0))
    assert _unmet(alone=alone, learning=replace(GOOD, rounds=_rounds(199.0, 500.0, 150.0))) == []
    assert _unmet(alone=alone, learning=replace(GOOD, rounds=_rounds(199.0, 101.0, 201.0))) != []
    assert _unmet(alone=alone, learning=replace(GOOD, rounds=_rounds(100.0, None, None))) != []
