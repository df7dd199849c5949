"""Statistics of a soak test's phases, and verdicts on its requirements."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.soak.load_generator import RequestRecord

WAIT_SECONDS = 2.0  # maximum time until a search starts
_STEP_SECONDS = 1.0  # for an admitted search once it has started
_STABLE_RATIO = 2.0  # of the latency while tasks are learned
_RECOVERY_SECONDS = 5.0


@dataclass(frozen=True)
class RoundFigures:
    """A round's figures.

    Attributes:
        capacity: Capacity in answers per second that the rate follows.
        requests, refused: Number of requests, and of those refused with status 429.
        p99: 99th percentile latency of the answers in milliseconds; None without an answer.
        stolen: Share of all cores' time that the hypervisor gave to other machines.
    """

    capacity: float
    requests: int
    refused: int
    p99: float | None
    stolen: float


@dataclass(frozen=True)
class PhaseOutcome:
    """What a load phase measured.

    Attributes:
        statistics: Figures for the requests.
        memory: Trend of the API's private memory.
        api_cores, generator_cores: Processor time of the API and of the load generator per second of load.
    """

    statistics: PhaseStatistics
    memory: MemoryTrend
    rounds: Sequence[RoundFigures]
    api_cores: float
    generator_cores: float


@dataclass(frozen=True)
class Verdict:
    """A requirement, the measured value, and whether it is met."""

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
    """Judge all requirements.

    Args:
        steady: The phase at 80 % of capacity.
        alone: The phase at 80 % of capacity, just before each task.
        learning: The phase at the same rates while a task is learned in each round.
        overload: The phase at 200 % of capacity.
        recovery: Seconds after the overload until a search is answered as fast as in the steady phase.
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


_MIB = 1024**2
_MIN_SAMPLES = 3
_MAX_CORRELATION, _TINY = 0.99, 1e-12


@dataclass(frozen=True)
class PhaseStatistics:
    """The responses in a phase.

    Attributes:
        rate: Scheduled requests per second, on average.
        answered: Number of responses with status 200.
        refused: Number of responses with status 429 and ``Retry-After``.
        errors: Other outcomes by status; 0 is a failed connection, and "429 without Retry-After" counts separately.
        p50, p99, worst: Latency of the answered requests in milliseconds; None without any.
        delay: 99th percentile delay of the generator in milliseconds, which the latencies contain.
    """

    rate: float
    requests: int
    answered: int
    refused: int
    errors: dict[str, int]
    p50: float | None
    p99: float | None
    worst: float | None
    delay: float


@dataclass(frozen=True)
class MemoryTrend:
    """The linear trend of a process's private memory.

    Attributes:
        first_mib, last_mib: Memory at the ends of the fitted line in MiB.
        slope: Growth in MiB per minute.
        error: Standard error of the slope.
    """

    first_mib: float
    last_mib: float
    slope: float
    error: float
    samples: int

    @property
    def is_flat(self) -> bool:
        """Whether the growth is within two standard errors of zero, or below one percent of the memory per hour."""
        return self.slope <= max(2 * self.error, 0.01 * self.first_mib / 60)


def summarize_phase(records: Sequence[RequestRecord], rate: float) -> PhaseStatistics:
    """Compute the figures for a phase's requests."""
    latencies = [1000 * record.seconds for record in records if record.status == 200]
    errors: Counter[str] = Counter()
    refused = 0
    for record in records:
        if record.status == 429 and record.has_retry_after:
            refused += 1
        elif record.status != 200:
            errors["429 without Retry-After" if record.status == 429 else str(record.status)] += 1
    p50, p99, worst = np.percentile(latencies, [50, 99, 100]) if latencies else (None, None, None)
    delay = float(np.percentile([1000 * record.delay for record in records], 99)) if records else 0.0
    return PhaseStatistics(
        rate,
        len(records),
        len(latencies),
        refused,
        dict(errors),
        _rounded(p50),
        _rounded(p99),
        _rounded(worst),
        round(delay, 1),
    )


def fit_memory_trend(samples: Sequence[tuple[float, int]]) -> MemoryTrend:
    """Fit a least-squares line through samples of time in seconds and memory in bytes.

    A process's memory changes in steps, so successive residuals are alike. The standard error counts *n* samples, whose
    successive residuals have the correlation *r*, as *n(1 - r)/(1 + r)* independent ones (a first-order
    autoregression).

    Raises:
        ValueError: There are fewer than three samples, or all have the same time.
    """
    times, values = np.array(samples, np.float64).reshape(-1, 2).T
    if len(times) < _MIN_SAMPLES or np.ptp(times) == 0:
        raise ValueError(f"a trend needs {_MIN_SAMPLES} samples at different times; there are {len(times)}")
    minutes, memory = times / 60, values / _MIB
    slope, intercept = np.polyfit(minutes, memory, 1)
    residuals = memory - (slope * minutes + intercept)
    deviation = ((minutes - minutes.mean()) ** 2).sum()
    correlation = (residuals[1:] * residuals[:-1]).sum() / max((residuals**2).sum(), _TINY)
    correlation = np.clip(correlation, 0.0, _MAX_CORRELATION)
    variance = (residuals**2).sum() / (len(times) - 2) / deviation
    error = np.sqrt(variance * (1 + correlation) / (1 - correlation))
    ends = slope * minutes[[0, -1]] + intercept
    return MemoryTrend(
        round(float(ends[0]), 1), round(float(ends[1]), 1), float(slope), float(error), len(times)
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 1)
