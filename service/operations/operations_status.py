"""The state of operation, bounded in size: workers, queue, running tasks, jobs, disk and searches."""

from __future__ import annotations

import shutil
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas.operations import (
    OperationsStatus,
    QueuedTask,
    RunningTask,
    SearchLoad,
    TrainingPoint,
    WorkerDetails,
)
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import WorkerReport
from service.catalog.tables import ACTIVE_STATES, LEARNING_STATES, Event, Task, to_response
from service.catalog.worker_reports import ALIVE, process_name
from service.core.settings import settings
from service.operations.maintenance_jobs import list_jobs
from service.storage.index_manifest import published_manifest
from service.tasks import broker
from service.tasks.task_storage import task_details

_QUEUED = 20
_RUNNING = 3
_POINTS = 200
_WORKERS = 50


def operations_status(searches: SearchLoad) -> OperationsStatus:
    """Collect the state of operation."""
    with session_scope() as session:
        at = now(session)
        waiting = _waiting_tasks(session, at)
        claimed = session.scalars(
            select(Task)
            .where(Task.state.in_(ACTIVE_STATES), Task.lease_owner.is_not(None), Task.lease_expires_at >= at)
            .order_by(Task.position)
        ).all()
        queue = [
            QueuedTask(
                id=task.id,
                name=task.name,
                state=task.state,
                kind="append" if task.into else "domain",
                videos=task.counts.videos,
            )
            for task in task_details(session, waiting[:_QUEUED])
        ]
        running = [_running(session, task) for task in claimed[:_RUNNING]]
        tasks = {process_name(task.lease_owner or ""): task.name for task in claimed}
        rows = session.scalars(
            select(WorkerReport).order_by(WorkerReport.seen_at.desc(), WorkerReport.name).limit(_WORKERS)
        ).all()
        workers = [
            to_response(
                WorkerDetails,
                row,
                alive=at - row.seen_at < ALIVE,
                gpus=row.gpus or [],
                task=tasks.get(row.name),
            )
            for row in rows
        ]
    free, total = _disk()
    return OperationsStatus(
        searches=searches,
        waiting=len(waiting),
        queue=queue,
        messages={name: broker.queue_length(name) for name in (broker.CPU_QUEUE, broker.GPU_QUEUE)},
        running=running,
        workers=workers,
        jobs=list_jobs(),
        free_bytes=free,
        total_bytes=total,
        compactable_bytes=_compactable_bytes(),
    )


def _waiting_tasks(session: Session, at: datetime) -> list[Task]:
    """List the tasks that wait to be learned, in queue order."""
    tasks = session.scalars(
        select(Task)
        .where(Task.state.in_(ACTIVE_STATES), Task.state.not_in(LEARNING_STATES))
        .order_by(Task.position)
    )
    # A worker that has claimed a probed task is about to learn it.
    return [
        task
        for task in tasks
        if task.probed_at is None or task.lease_expires_at is None or task.lease_expires_at < at
    ]


def _disk() -> tuple[int | None, int | None]:
    """Measure free and total bytes on the data folder's disk; None if unknown."""
    try:
        disk = shutil.disk_usage(settings().data_dir)
    except OSError:
        return None, None
    return disk.free, disk.total


def _running(session: Session, task: Task) -> RunningTask:
    events = session.execute(
        select(Event.at, Event.data)
        .where(Event.task_id == task.id, Event.kind == "progress")
        .order_by(Event.id.desc())
        .limit(_POINTS)
    ).all()
    points = [
        TrainingPoint(
            at=at,
            stage=str(data.get("stage", "")),
            fraction=data.get("fraction", 0.0),
            loss=data.get("loss"),
            videos_per_second=data.get("videos_per_second"),
        )
        for at, data in reversed(events)
    ]
    return RunningTask(id=task.id, name=task.name, state=task.state, points=points)  # type: ignore[arg-type]


def _compactable_bytes() -> int:
    manifest, _ = published_manifest()
    return sum(
        segment.bytes
        for task in manifest.shards
        if task in manifest.tombstones or task in manifest.appended
        for segment in manifest.segments(task)
    )
