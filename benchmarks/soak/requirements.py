"""Check the requirements of a soak test: errors, latencies, memory growth and recovery."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from benchmarks.soak.load_generator import RequestRecord

WAIT_SECONDS = 2.0  # maximum time until a search starts
_MAX_OVERLOAD_MS = 1000 * (WAIT_SECONDS + 1)  # with a second for an admitted search
_MAX_LEARNING_RATIO = 2.0  # of the latency while tasks are learned
_MAX_RECOVERY_SECONDS = 5.0
_MAX_CORRELATION, _TINY = 0.99, 1e-12


class Verdict(NamedTuple):
    """A requirement, the measured value, and whether it is met."""

    requirement: str
    measured: str
    is_met: bool


@dataclass(frozen=True)
class PhaseOutcome:
    """What a load phase measured; latencies are those of the answers in milliseconds."""

    requests: int
    answered: int
    refused: int  # 429 with Retry-After
    errors: dict[str, int]  # other outcomes by status; 0: a failed connection
    p50: float | None
    p99: float | None
    p99s: list[float | None]  # of the rounds
    capacities: list[float]  # answers per second that the rates of the rounds follow
    memory: MemoryTrend


@dataclass(frozen=True)
class MemoryTrend:
    """Trend of a process's private memory: ends of the fitted line in MiB, slope in MiB per minute, and its error."""

    first_mib: float
    last_mib: float
    slope: float
    error: float

    @property
    def is_flat(self) -> bool:
        """Whether the growth is within two standard errors of zero, or below one percent of the memory per hour."""
        return self.slope <= max(2 * self.error, 0.01 * self.first_mib / 60)


def judge(
    steady: PhaseOutcome, alone: PhaseOutcome, learning: PhaseOutcome, overload: PhaseOutcome, recovery: float
) -> list[Verdict]:
    """Judge all requirements, given the phases and the seconds from the overload until a search is fast again."""
    pairs = zip(learning.p99s, alone.p99s, strict=True)
    ratios = [beside / before if beside and before else math.inf for beside, before in pairs]
    ratio, slow, trend = statistics.median(ratios), overload.p99 or math.inf, steady.memory

    def count(phase: PhaseOutcome) -> str:
        return f"{sum(phase.errors.values())} errors, {phase.refused} refusals of {phase.requests}"

    return [
        *(
            Verdict(
                f"{name}: neither errors nor refusals at 80 % of the capacity",
                count(phase),
                not phase.errors and not phase.refused,
            )
            for name, phase in (("steady", steady), ("alone", alone), ("learning", learning))
        ),
        Verdict(
            "steady: memory is flat", f"{trend.slope:.2f} ± {trend.error:.2f} MiB per minute", trend.is_flat
        ),
        Verdict(
            f"learning: p99 at most {_MAX_LEARNING_RATIO:g} times that just before (median of the rounds)",
            f"{ratio:.2f} times ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds)",
            ratio <= _MAX_LEARNING_RATIO,
        ),
        Verdict("overload: only answers, and 429 with Retry-After", count(overload), not overload.errors),
        Verdict(
            f"overload: p99 of answers at most {_MAX_OVERLOAD_MS:.0f} ms",
            f"{slow:.0f} ms",
            slow <= _MAX_OVERLOAD_MS,
        ),
        Verdict(
            f"recovery within {_MAX_RECOVERY_SECONDS:g} s",
            f"{recovery:g} s",
            recovery <= _MAX_RECOVERY_SECONDS,
        ),
    ]


def summarize_phase(
    rounds: Sequence[Sequence[RequestRecord]],
    capacities: Sequence[float],
    memory: Sequence[tuple[float, int]],
) -> PhaseOutcome:
    """Compute the figures of a phase from the requests of its rounds and its samples of memory."""
    records = list(chain.from_iterable(rounds))
    outcomes = Counter(
        "429 without Retry-After"
        if record.status == 429 and not record.has_retry_after
        else str(record.status)
        for record in records
    )
    answered, refused = outcomes.pop("200", 0), outcomes.pop("429", 0)
    return PhaseOutcome(
        requests=len(records),
        answered=answered,
        refused=refused,
        errors=dict(outcomes),
        p50=_percentile(records, 50),
        p99=_percentile(records, 99),
        p99s=[_percentile(one, 99) for one in rounds],
        capacities=[round(capacity, 1) for capacity in capacities],
        memory=fit_memory_trend(memory),
    )


def fit_memory_trend(samples: Sequence[tuple[float, int]]) -> MemoryTrend:
    """Fit a least-squares line through samples of time in seconds and memory in bytes.

    A process's memory changes in steps, so successive residuals are alike. The standard error counts *n* samples, whose
    successive residuals have the correlation *r*, as *n(1 - r)/(1 + r)* independent ones (a first-order
    autoregression).
    """
    times, values = np.array(samples, np.float64).reshape(-1, 2).T
    if len(times) < 3 or np.ptp(times) == 0:
        raise ValueError(f"a trend needs 3 samples at different times; there are {len(times)}")
    minutes, memory = times / 60, values / 1024**2
    slope, intercept = np.polyfit(minutes, memory, 1)
    residuals = memory - (slope * minutes + intercept)
    deviation = ((minutes - minutes.mean()) ** 2).sum()
    correlation = (residuals[1:] * residuals[:-1]).sum() / max((residuals**2).sum(), _TINY)
    correlation = np.clip(correlation, 0.0, _MAX_CORRELATION)
    variance = (residuals**2).sum() / (len(times) - 2) / deviation
    error = np.sqrt(variance * (1 + correlation) / (1 - correlation))
    first, last = slope * minutes[[0, -1]] + intercept
    return MemoryTrend(round(float(first), 1), round(float(last), 1), float(slope), float(error))


def _percentile(records: Sequence[RequestRecord], share: float) -> float | None:
    """Compute a percentile of the answers' latency in milliseconds."""
    latencies = [1000 * record.seconds for record in records if record.status == 200]
    return round(float(np.percentile(latencies, share)), 1) if latencies else None
