"""Details of tasks as clients see them, with estimates of the remaining time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.catalog.database import id_chunks
from service.catalog.tables import ACTIVE_STATES, Task, Video
from service.core.schemas import RejectedVideo, TaskDetails, TaskProgress, VideoCounts

__all__ = ["DEFAULT_SECONDS_PER_VIDEO", "MAX_REJECTED", "seconds_per_video", "task_details"]

DEFAULT_SECONDS_PER_VIDEO = 1.0  # until finished tasks give an estimate
MAX_REJECTED = 100  # rejected videos in the details of a task


def task_details(session: Session, tasks: Sequence[Task]) -> list[TaskDetails]:
    """Return the details of tasks, in their order."""
    rejected = _rejected(session, [task.id for task in tasks])
    remaining = _remaining_seconds(session) if any(_is_waiting(task) for task in tasks) else {}
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
            progress=TaskProgress.model_validate(task.progress),
            eta_seconds=remaining.get(task.id) if _is_waiting(task) else task.eta_seconds,
            rejected=rejected.get(task.id, []),
            error=task.error,
            error_hint=task.error_hint,
            counts=VideoCounts.model_validate(task.counts),
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
        )
        for task in tasks
    ]


def _rejected(session: Session, task_ids: list[str]) -> dict[str, list[RejectedVideo]]:
    """Return the first rejected videos of each task."""
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


def _is_waiting(task: Task) -> bool:
    return task.state in ("queued", "probing") and task.eta_seconds is None


def _remaining_seconds(session: Session) -> dict[str, float]:
    """Estimate the seconds until each unfinished task is ready.

    The estimate uses the tasks ahead of it and the pace of recent tasks.
    """
    pace = seconds_per_video(
        session.scalars(
            select(Task)
            .where(
                Task.state == "ready",
                Task.target_id.is_(None),
                Task.started_at.is_not(None),
                Task.finished_at.is_not(None),
            )
            .order_by(Task.position.desc())
            .limit(5)
        )
    )
    remaining, ahead = {}, 0.0
    pending = dict(
        session.execute(
            select(Video.task_id, func.count())
            .join(Task)
            .where(Task.state.in_(ACTIVE_STATES), Video.status != "rejected")
            .group_by(Video.task_id)
        ).all()
    )
    for task in session.scalars(select(Task).where(Task.state.in_(ACTIVE_STATES)).order_by(Task.position)):
        own = pending.get(task.id, 0) * pace
        ahead += own if task.eta_seconds is None else min(own, task.eta_seconds)
        remaining[task.id] = round(ahead, 1)
    return remaining


def seconds_per_video(tasks: Iterable[Task]) -> float:
    """Return the mean duration of finished tasks per video; a default if there are none."""
    seconds, videos = 0.0, 0
    for task in tasks:
        left = task.counts.get("videos")  # zero if all were deleted: the duration gives no pace then
        if task.started_at and task.finished_at and left:
            seconds += (task.finished_at - task.started_at).total_seconds()
            videos += left
    return seconds / videos if videos else DEFAULT_SECONDS_PER_VIDEO
