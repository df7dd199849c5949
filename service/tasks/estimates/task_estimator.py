"""Remaining time of a task and its stage, from the progress that the worker reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from service.tasks.estimates.progress_rate import ProgressRate

__all__ = ["STAGES", "TaskEstimator", "seconds_from"]

# In the order of their execution; a task skips the stages that it does not need.
STAGES = (
    "probing",
    "loading",
    "decoding",
    "training",
    "indexing",
    "calibrating",
    "writing",
    "moments",
    "measuring",
    "baseline",
    "evaluating",
)

_COMPUTED_STAGES = ("training", "indexing", "moments")  # their pace is that of the device
_MIN_COMPARED = 0.1  # of the expected duration of the task, so that a short stage does not decide the pace

Seconds = Mapping[str, float | None]


def seconds_from(expected: Seconds | None, stage: str, *, share: float = 0.0) -> float | None:
    """Expected seconds of a stage and all later ones.

    Args:
        expected: Expected seconds by stage, None for a stage that was never measured; None: no stage was.
        stage: Name of the stage.
        share: Completed share of the stage, 0..1; 1: only the later stages count.

    Returns:
        The sum; None if a part of it is unknown.
    """
    if expected is None or stage not in STAGES:
        return None
    first = STAGES.index(stage)
    total = 0.0
    for name, seconds in expected.items():
        if name not in STAGES or STAGES.index(name) < first or (name == stage and share >= 1):
            continue
        if seconds is None:
            return None
        total += seconds * (1 - share) if name == stage else seconds
    return total


class TaskEstimator:
    """Estimates of the remaining time of a task, and measurement of its stages.

    Args:
        expected: Seconds that each stage of comparable tasks took; None: no such task has finished.
        measured: Seconds of the stages that earlier attempts finished; None for a stage that an earlier attempt left
            unfinished, so that its duration cannot be measured.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        expected: Seconds | None = None,
        measured: Seconds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = expected
        self._earlier = dict(measured or {})
        self._clock = clock
        self._own: dict[str, float] = {}
        self._stage: str | None = None
        self._share = 0.0
        self._began = 0.0
        self._rate = ProgressRate(clock)

    def observe(self, stage: str, share: float = 0.0) -> None:
        """Report the completed share of a stage, 0..1; 0 in a stage that reports none."""
        if stage != self._stage:
            self.finish_stage()
            self._stage, self._began, self._rate = stage, self._clock(), ProgressRate(self._clock)
        self._share = min(max(share, 0.0), 1.0)
        self._rate.observe(self._share)

    def finish_stage(self) -> None:
        """End the current stage: its seconds are measured."""
        if self._stage is not None:
            self._own[self._stage] = self._own.get(self._stage, 0.0) + self._clock() - self._began
        self._stage = None

    @property
    def measured(self) -> dict[str, float | None]:
        """Seconds of each finished stage, of the attempt in which it took longest; None if it cannot be measured."""
        names = [name for name in STAGES if name in self._own or name in self._earlier]
        seconds: dict[str, float | None] = {}
        for name in names:
            earlier = self._earlier.get(name, 0.0)
            seconds[name] = None if earlier is None else round(max(earlier, self._own.get(name, 0.0)), 3)
        return seconds

    @property
    def share_per_second(self) -> float | None:
        """Share of the stage per second; None with too few observations."""
        return self._rate.per_second

    @property
    def stage_seconds(self) -> float | None:
        """Estimated seconds until the end of the current stage.

        The measured rate decides; before there is one, the duration of the stage in comparable tasks. None: neither is
        known.
        """
        if self._stage is None:
            return None
        left = self._rate.seconds_left
        if left is not None:
            return left
        whole = (self._expected or {}).get(self._stage)
        if whole is None:
            return None
        whole *= self._pace()
        return whole * (1 - self._share) if self._share else max(whole - (self._clock() - self._began), 0.0)

    @property
    def task_seconds(self) -> float | None:
        """Estimated seconds until the end of the last stage; None if the current or a later stage is unknown."""
        left = self.stage_seconds
        if left is None or self._stage is None:
            return None
        ahead = seconds_from(self._expected, self._stage, share=1.0)
        return None if ahead is None else left + ahead * self._pace()

    def _pace(self) -> float:
        """Duration of this attempt's computed stages, relative to comparable tasks.

        The device may be busier, or less busy, than it was then; later stages take more or less time, too.
        """
        expected = {name: seconds for name, seconds in (self._expected or {}).items() if seconds}
        measured = {name: seconds for name, seconds in self._own.items() if name not in self._earlier}
        rate = self._rate.per_second
        if rate and self._stage is not None:
            measured[self._stage] = 1 / rate
        compared = [name for name in _COMPUTED_STAGES if name in measured and name in expected]
        former = sum(expected[name] for name in compared)
        if not former or former < _MIN_COMPARED * sum(expected.values()):
            return 1.0
        return sum(measured[name] for name in compared) / former
