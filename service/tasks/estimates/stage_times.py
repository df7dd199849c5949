"""Measured stage times in the progress of a task; the events of the task omit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cinestrata_schemas.tasks import StageTimes
from service.catalog.tables import Task
from service.tasks.estimates.task_estimator import STAGES

__all__ = ["interrupted_times", "replace_progress", "restarted_times"]


def replace_progress(task: Task, view: dict[str, Any], seconds: Mapping[str, float | None]) -> None:
    """Replace the progress of a locked task, except for its stage times.

    Args:
        task: The task.
        view: New progress, without stage times.
        seconds: Seconds of each finished stage. They are dropped for a task of an earlier version, which has no stage
            times.
    """
    times = StageTimes.of(task.progress)
    if times is not None:
        view = {**view, "times": times.model_copy(update={"seconds": dict(seconds)}).model_dump()}
    task.progress = view


def interrupted_times(task: Task) -> StageTimes | None:
    """Stage times of a task whose current stage was interrupted, and is not measured."""
    times, stage = StageTimes.of(task.progress), task.progress.get("stage")
    if times is None or stage not in STAGES:
        return times
    return times.model_copy(update={"seconds": {**times.seconds, stage: None}})


def restarted_times(task: Task) -> StageTimes | None:
    """Stage times of a task that starts again; its training may resume from a checkpoint, and is not measured."""
    times = StageTimes.of(task.progress)
    return times and times.model_copy(update={"seconds": {"training": None}})
