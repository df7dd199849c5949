"""Expected durations of the stages of a task, from those of finished tasks in the catalog."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.tasks import StageTimes
from service.catalog.tables import Task

__all__ = ["StageHistory"]

_READ_TASKS = 20  # newest finished tasks that are compared
_USED_TASKS = 3
_MAX_SIZE_RATIO = 2.0  # of two tasks whose stages take times in proportion to their videos
_FIXED_STAGES = ("loading",)  # the same for any number of videos


class _FinishedTask(NamedTuple):
    settings: dict[str, Any]
    times: StageTimes


class StageHistory:
    """Durations of the stages of finished tasks, read once per method.

    Tasks are comparable if both are domains or both appends, with the same method and settings, both with captions or
    both without, and if the larger one has at most twice the videos. The backbone is the same in the whole library.

    Args:
        session: Session of the catalog.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._finished: dict[tuple[str, bool], list[_FinishedTask]] = {}

    def expected_seconds(self, task: Task) -> dict[str, float | None] | None:
        """Expected seconds of each stage of a task.

        Returns:
            The medians of the newest comparable tasks, in proportion to the number of videos; None for a stage that
            none of them has measured. None: no comparable task has finished.
        """
        times = StageTimes.of(task.progress)
        if times is None or not times.videos:
            return None
        found = [
            other.times
            for other in self._read(task.method, task.target_id is not None)
            if other.settings == task.settings
            and other.times.captioned == times.captioned
            and max(other.times.videos, times.videos)
            <= _MAX_SIZE_RATIO * min(other.times.videos, times.videos)
        ][:_USED_TASKS]
        if not found:
            return None
        expected: dict[str, float | None] = {}
        for stage in dict.fromkeys(name for other in found for name in other.seconds):
            values = []
            for other in found:
                seconds = other.seconds.get(stage, 0.0)  # a task that skipped the stage needed no time for it
                if seconds is not None:
                    scale = 1.0 if stage in _FIXED_STAGES else times.videos / other.videos
                    values.append(seconds * scale)
            expected[stage] = statistics.median(values) if values else None
        return expected

    def _read(self, method: str, is_append: bool) -> list[_FinishedTask]:
        key = method, is_append
        if key not in self._finished:
            rows = self._session.execute(
                select(Task.settings, Task.progress)
                .where(
                    Task.state == "ready",
                    Task.method == method,
                    Task.target_id.is_not(None) if is_append else Task.target_id.is_(None),
                )
                .order_by(Task.position.desc())
                .limit(_READ_TASKS)
            )
            parsed = [(dict(values), StageTimes.of(progress)) for values, progress in rows]
            self._finished[key] = [
                _FinishedTask(values, times) for values, times in parsed if times and times.videos
            ]
        return self._finished[key]
