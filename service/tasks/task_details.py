"""Task details as clients see them, including estimates of the remaining time."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import RejectedVideo, StageTimes, TaskDetails, TaskProgress, VideoCounts
from service.catalog.column_types import is_damaged
from service.catalog.database import id_chunks
from service.catalog.domain_videos import read_counts
from service.catalog.tables import ACTIVE_STATES, Task, Video, describe_damage

MAX_REJECTED = 100  # listed in a task's details

_READ_TASKS = 200  # newest finished tasks to compare with
_USED_TASKS = 5
_DAMAGE_HINT = "Run `cinestrata doctor` and correct these values, or restore the catalog from a backup."


def task_details(session: Session, tasks: Sequence[Task]) -> list[TaskDetails]:
    """Describe tasks, in order."""
    damage = {task.id: describe_damage(task) for task in tasks}
    rejected = _rejected(session, [task.id for task in tasks])
    remaining = remaining_seconds(session) if any(task.state in ACTIVE_STATES for task in tasks) else {}
    return [
        TaskDetails(
            id=task.id,
            name=task.name,
            slug=task.slug,
            into=task.target_id,
            relearns=task.relearns_id,
            method=task.method,
            settings=task.settings,
            state=task.state,  # type: ignore[arg-type]
            progress=_progress(task),
            eta_seconds=remaining.get(task.id),
            rejected=rejected.get(task.id, []),
            error=" ".join(filter(None, (task.error, damage[task.id]))) or None,
            error_hint=task.error_hint or (_DAMAGE_HINT if damage[task.id] else None),
            remedy=Action.model_validate(task.remedy) if task.remedy else None,
            counts=VideoCounts.model_validate(read_counts(session, task.id, task.counts)),
            learned_order=task.learned_order,
            release=task.release_id,
            trained=task.trained,
            held_out=task.held_out,  # type: ignore[arg-type]
            position=task.position,
            attempts=task.attempts,
            cancel_requested=task.cancel_requested,
            created_at=task.created_at,
            started_at=task.started_at,
            finished_at=task.finished_at,
            request_id=task.request_id,
        )
        for task in tasks
    ]


def _rejected(session: Session, task_ids: list[str]) -> dict[str, list[RejectedVideo]]:
    """Read the first rejected videos of each task."""
    number = func.row_number().over(partition_by=Video.task_id, order_by=Video.vector_id).label("number")
    found: dict[str, list[RejectedVideo]] = {}
    for chunk in id_chunks(task_ids):
        numbered = (
            select(Video.id, Video.task_id, Video.uri, Video.reason, number)
            .where(Video.status == "rejected", Video.task_id.in_(chunk))
            .subquery()
        )
        rows = session.execute(
            select(numbered).where(numbered.c.number <= MAX_REJECTED).order_by(numbered.c.number)
        )
        for video_id, task_id, uri, reason, _ in rows:
            video = RejectedVideo(id=video_id, task_id=task_id, uri=uri, reason=reason or "")
            found.setdefault(task_id, []).append(video)
    return found


def _progress(task: Task) -> TaskProgress:
    """Read a task's progress. Without a worker, nobody knows when the stage ends."""
    if is_damaged(task.progress):
        return TaskProgress(stage=task.state)
    progress = TaskProgress.model_validate(task.progress)
    return progress if task.lease_owner else progress.model_copy(update={"eta_seconds": None})


class StageClock:
    """Times the stages of an attempt, and measures the rate of the current one.

    Args:
        seconds: Seconds that previous attempts spent in each stage.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._finished = dict(seconds)
        self._stage: str | None = None
        self._began = 0.0
        self._reports: list[tuple[float, float]] = []  # time and share of the first and last report

    def observe(self, stage: str, share: float | None = None) -> None:
        """Report how much of a stage is completed, 0..1, or only that it is the current one."""
        now = monotonic()
        if stage != self._stage:
            self._finished, self._stage, self._began, self._reports = self.seconds, stage, now, []
        if share is not None:
            # The first report includes progress from previous attempts or other workers.
            is_first = not self._reports or share < self._reports[-1][1]
            self._reports = [(now, share)] if is_first else [self._reports[0], (now, share)]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent in each stage so far, previous attempts included."""
        if self._stage is None:
            return self._finished
        spent = self._finished.get(self._stage, 0.0) + monotonic() - self._began
        return {**self._finished, self._stage: round(spent, 3)}

    @property
    def share_per_second(self) -> float | None:
        """Share of the current stage per second; None until it has advanced."""
        if not self._reports:
            return None
        (start, before), (end, share) = self._reports[0], self._reports[-1]
        return (share - before) / (end - start) if share > before and end > start else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the current stage ends, at its rate; None without a rate."""
        rate = self.share_per_second
        return None if rate is None else round(max(1 - self._reports[-1][1], 0.0) / rate, 1)


def progress_with_times(task: Task, view: dict[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Add what all stages report to a task's progress: stage times and peak memory."""
    shared = {key: task.progress[key] for key in ("peak_memory",) if key in task.progress}
    if (times := StageTimes.of(task.progress)) is not None:
        shared["times"] = {**times.model_dump(), "seconds": dict(seconds)}
    return {**shared, **view}


def remaining_seconds(session: Session) -> dict[str, float | None]:
    """Estimate the seconds until each unfinished task is ready, by task ID.

    A domain waits for the unfinished domains ahead of it; appends wait for none. None if no comparable task (same kind
    and method, both with or both without captions) has finished, or if the videos' source does not respond.
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
