"""Remaining time of tasks: the rate of the running stage, and the median of comparable finished tasks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from time import monotonic
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import StageTimes
from service.catalog.tables import ACTIVE_STATES, Task

_READ_TASKS = 200  # newest finished tasks that are compared
_USED_TASKS = 5


class StageClock:
    """Measures the stages of an attempt, and the rate of the current one.

    Args:
        seconds: Seconds that earlier attempts spent in each stage.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._finished = dict(seconds)
        self._stage: str | None = None
        self._began = 0.0
        self._reports: list[tuple[float, float]] = []  # time and share of the first and the last report

    def observe(self, stage: str, share: float | None = None) -> None:
        """Report the completed share of a stage, 0..1, or only that it is the current stage."""
        now = monotonic()
        if stage != self._stage:
            self._finished, self._stage, self._began, self._reports = self.seconds, stage, now, []
        if share is not None:
            # Earlier attempts, or other workers, have made the progress of the first report.
            is_first = not self._reports or share < self._reports[-1][1]
            self._reports = [(now, share)] if is_first else [self._reports[0], (now, share)]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent in each stage so far, with those of earlier attempts."""
        if self._stage is None:
            return self._finished
        spent = self._finished.get(self._stage, 0.0) + monotonic() - self._began
        return {**self._finished, self._stage: round(spent, 3)}

    @property
    def share_per_second(self) -> float | None:
        """Share of the current stage per second; None until its progress has grown."""
        if not self._reports:
            return None
        (start, before), (end, share) = self._reports[0], self._reports[-1]
        return (share - before) / (end - start) if share > before and end > start else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end of the current stage at its rate; None without a rate."""
        rate = self.share_per_second
        return None if rate is None else round(max(1 - self._reports[-1][1], 0.0) / rate, 1)


def progress_with_times(task: Task, view: dict[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return a progress of a task together with its stage times, which the events of the task omit."""
    return {**view, "times": {**task.progress["times"], "seconds": dict(seconds)}}


def remaining_seconds(session: Session) -> dict[str, float | None]:
    """Estimate the seconds until each unfinished task is ready, by task ID.

    A domain waits for the unfinished domains ahead of it; appends wait for none. None: no task with the same kind and
    method, both with or both without captions, has finished, or the source of the videos does not answer.
    """
    paces: dict[tuple[object, ...], list[float]] = {}
    finished = select(Task).where(Task.state == "ready").order_by(Task.position.desc()).limit(_READ_TASKS)
    for task in session.scalars(finished):
        times = StageTimes.of(task.progress)
        if times and times.videos and times.seconds:
            paces.setdefault(_kind(task, times), []).append(sum(times.seconds.values()) / times.videos)
    remaining: dict[str, float | None] = {}
    ahead: float | None = 0.0
    for task in session.scalars(select(Task).where(Task.state.in_(ACTIVE_STATES)).order_by(Task.position)):
        left = _own_seconds(task, paces)
        if task.target_id is None:
            left = ahead = None if left is None or ahead is None else ahead + left
        remaining[task.id] = None if left is None else round(left, 1)
    return remaining


def _own_seconds(task: Task, paces: Mapping[tuple[object, ...], list[float]]) -> float | None:
    times = StageTimes.of(task.progress)
    comparable = paces.get(_kind(task, times)) if times else None
    if times is None or comparable is None or task.progress.get("outages"):
        return None
    expected = times.videos * statistics.median(comparable[:_USED_TASKS])
    stage_left = (task.progress.get("eta_seconds") or 0.0) if task.lease_owner is not None else 0.0
    return max(expected - sum(times.seconds.values()), stage_left)


def _kind(task: Task, times: StageTimes) -> tuple[object, ...]:
    return task.method, task.target_id is None, times.captioned
