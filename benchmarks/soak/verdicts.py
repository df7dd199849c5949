"""Requirements on a service under load, and the verdicts that its measured phases give."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.soak.load_statistics import MemoryTrend, PhaseStatistics

WAIT_SECONDS = 2.0  # maximum time of a search until it starts
_STEP_SECONDS = 1.0  # of an admitted search after its start
_STABLE_RATIO = 2.0  # of the latency while tasks are learned
_RECOVERY_SECONDS = 5.0


@dataclass(frozen=True)
class RoundFigures:
    """Figures of a round of a phase.

    Attributes:
        capacity: Capacity in answers per second that the rate follows.
        requests, refused: Number of requests, and of those refused with status 429.
        p99: 99th percentile of the latency of the answers in milliseconds; None without an answer.
        stolen: Share of the time of all cores that the hypervisor gave to other machines.
    """

    capacity: float
    requests: int
    refused: int
    p99: float | None
    stolen: float


@dataclass(frozen=True)
class PhaseOutcome:
    """Outcome of a phase of load.

    Attributes:
        statistics: Figures of the requests.
        memory: Trend of the private memory of the API.
        rounds: Figures of the rounds.
        api_cores, generator_cores: Processor time of the API and of the load generator per second of load.
    """

    statistics: PhaseStatistics
    memory: MemoryTrend
    rounds: Sequence[RoundFigures]
    api_cores: float
    generator_cores: float


@dataclass(frozen=True)
class Verdict:
    """A requirement with its measured value, and whether it is met."""

    requirement: str
    measured: str
    is_met: bool


def judge(
    steady: PhaseOutcome,
    alone: PhaseOutcome,
    learning: PhaseOutcome,
    overload: PhaseOutcome,
    recovery: float,
) -> list[Verdict]:
    """Verdicts of all requirements.

    Args:
        steady: Outcome at 80 % of the capacity.
        alone: Outcome at 80 % of the capacity just before each task.
        learning: Outcome at the same rates while a task is learned in each round.
        overload: Outcome at 200 % of the capacity.
        recovery: Time in seconds after the overload until a search is answered as fast as in the steady phase.
    """
    trend = steady.memory
    pairs = [(beside.p99, before.p99) for beside, before in zip(learning.rounds, alone.rounds, strict=True)]
    ratios = [beside / before if beside and before else math.inf for beside, before in pairs]
    ratio = statistics.median(ratios)
    slow = overload.statistics.p99 or math.inf
    verdicts = [
        Verdict(
            f"{name}: neither errors nor refusals at 80 % of the capacity",
            f"{sum(phase.statistics.errors.values())} errors, {phase.statistics.refused} refusals",
            not phase.statistics.errors and not phase.statistics.refused,
        )
        for name, phase in (("steady", steady), ("alone", alone), ("learning", learning))
    ]
    limit = 1000 * (WAIT_SECONDS + _STEP_SECONDS)
    return [
        *verdicts,
        Verdict(
            "steady: memory is flat", f"{trend.slope:.2f} ± {trend.error:.2f} MiB per minute", trend.is_flat
        ),
        Verdict(
            f"learning: p99 at most {_STABLE_RATIO:g} times that just before (median of the rounds)",
            f"{ratio:.2f} times ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds)",
            ratio <= _STABLE_RATIO,
        ),
        Verdict(
            "overload: only answers, and 429 with Retry-After",
            f"{sum(overload.statistics.errors.values())} errors, {overload.statistics.refused} refusals",
            not overload.statistics.errors,
        ),
        Verdict(f"overload: p99 of answers at most {limit:.0f} ms", f"{slow:.0f} ms", slow <= limit),
        Verdict(f"recovery within {_RECOVERY_SECONDS:g} s", f"{recovery:g} s", recovery <= _RECOVERY_SECONDS),
    ]
