"""Task details as clients see them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from cinestrata_schemas.tasks import RejectedVideo, TaskDetails, TaskProgress, VideoCounts
from service.catalog.database import id_chunks
from service.catalog.domain_videos import read_counts
from service.catalog.tables import Task, Video

MAX_REJECTED = 100  # listed in a task's details


def task_details(session: Session, tasks: Sequence[Task]) -> list[TaskDetails]:
    """Describe tasks, in order."""
    rejected = _rejected(session, [task.id for task in tasks])
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
            rejected=rejected.get(task.id, []),
            error=task.error,
            error_hint=task.error_hint,
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
