"""Operate a library: the state that the page shows, and the compactions and snapshots that operators start there.

The worker of a job holds its lease. If the worker dies, the lease expires and the job starts again: both
kinds can be repeated. After three lost workers the job fails.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from cinestrata_schemas import operations
from cinestrata_schemas.tasks import TaskProgress
from service.access.audit_log import record_change
from service.backups.snapshots import snapshot_name, write_snapshot
from service.catalog.database import now, session_scope
from service.catalog.leases import ALIVE, Lease, acquire, is_leased, process_name, record_worker_error
from service.catalog.operation_tables import MaintenanceJob, WorkerReport
from service.catalog.tables import ACTIVE_STATES, LEARNING_STATES, Event, Task, to_response
from service.catalog.task_names import require_task
from service.core.errors import CinestrataError, Conflict, InvalidInput
from service.core.settings import settings
from service.library import deletion
from service.search.library_words import write_words
from service.storage.index_manifest import published_manifest
from service.storage.library_files import disk_space
from service.tasks import broker
from service.tasks.task_storage import task_details

UNFINISHED = ("queued", "running")
_MAX_RUNS = 3
_QUEUED, _RUNNING = 20, 3  # listed tasks
_POINTS, _WORKERS = 200, 50  # of each running task, and in all
_MAX_TEXT_CHARS = 2000

log = structlog.get_logger(__name__)


def start_job(spec: operations.JobSpec) -> operations.JobDetails:
    """Store a job and notify the workers, or return an unfinished job of the same kind and domain; raise NotFound."""
    if spec.kind == "snapshot" and spec.task is not None:
        raise InvalidInput.at("task", "A snapshot contains all domains.", "Omit the field.")
    with session_scope(write=True) as session:
        task_id = require_task(session, spec.task).id if spec.task is not None else None
        row = session.scalars(
            select(MaintenanceJob).where(
                MaintenanceJob.kind == spec.kind,
                MaintenanceJob.task_id == task_id,
                MaintenanceJob.state.in_(UNFINISHED),
            )
        ).first()
        if row is None:
            row = MaintenanceJob(
                kind=spec.kind, task_id=task_id, state="queued", created_at=now(session), attempts=0
            )
            session.add(row)
            session.flush()
            record_change(session, f"maintenance.{spec.kind}", task_id or "", {"job": row.id})
        details = to_response(operations.JobDetails, row)
    broker.send_maintenance(str(details.id))
    return details


def list_jobs(limit: int = 10) -> list[operations.JobDetails]:
    """List the last jobs, newest first."""
    with session_scope() as session:
        rows = session.scalars(select(MaintenanceJob).order_by(MaintenanceJob.id.desc()).limit(limit))
        return [to_response(operations.JobDetails, row) for row in rows]


def send_due_jobs() -> int:
    """Send messages for queued jobs and dead workers' jobs, if the queue is empty, and return how many."""
    with session_scope() as session:
        due = session.scalars(
            select(MaintenanceJob.id).where(
                MaintenanceJob.state.in_(UNFINISHED), ~is_leased("job", MaintenanceJob.id, now(session))
            )
        ).all()
    if not due or broker.queue_length(broker.CPU_QUEUE) != 0:
        return 0
    return sum(broker.send_maintenance(str(job)) for job in due)


def run_job(job_id: int) -> None:
    """Run a job, unless it is already running or finished."""
    with session_scope(write=True) as session:
        job = session.get(MaintenanceJob, job_id, with_for_update=True)
        if job is None or job.state not in UNFINISHED:
            return
        # Copying a large shard takes minutes without a sign of progress.
        lease = acquire(session, "job", str(job_id), needs_progress=False)
        if lease is None:
            return
        job.state, job.started_at, job.attempts = "running", now(session), job.attempts + 1
    with lease:
        try:
            if job.attempts > _MAX_RUNS:
                raise Conflict(f"The worker stopped {_MAX_RUNS} times. See its log, then repeat the job.")
            result = _snapshot(job_id) if job.kind == "snapshot" else _compact(job.task_id)
        except (CinestrataError, OSError) as error:
            log.warning("maintenance_job_failed", job=job_id, kind=job.kind, reason=str(error))
            _finish(job_id, lease, error=str(error))
        except Exception as error:
            log.exception("maintenance_job_failed", job=job_id, kind=job.kind)
            _finish(job_id, lease, error=f"{type(error).__name__}: {error}")
        else:
            _finish(job_id, lease, result=result)


def _compact(task_id: str | None) -> dict[str, Any]:
    usages = [usage for usage in deletion.storage_usage(task_id) if usage.is_compactable]
    compacted = [deletion.compact(usage.task_id) for usage in usages]
    write_words(compact=True)
    return {
        "domains": len(usages),
        "deleted": sum(usage.deleted for usage in usages),
        "bytes_before": sum(usage.bytes for usage in usages),
        "bytes_after": sum(usage.bytes for usage in compacted),
    }


def _snapshot(job_id: int) -> dict[str, Any]:
    with session_scope() as session:
        name = snapshot_name(now(session), job_id)
    report = write_snapshot(settings(), settings().backups_dir / name)
    return {**asdict(report), "path": str(report.path)}


def _finish(
    job_id: int, lease: Lease, *, result: dict[str, Any] | None = None, error: str | None = None
) -> None:
    with session_scope(write=True) as session:
        job = session.get_one(MaintenanceJob, job_id, with_for_update=True)
        if not lease.release(session):
            return
        job.state, job.result, job.finished_at = "failed" if error else "done", result, now(session)
        job.error = error and error[:_MAX_TEXT_CHARS]
        if error:
            record_worker_error(session, process_name(), f"Maintenance job {job_id}: {error}")


def operations_status() -> operations.OperationsStatus:
    """Collect queues, running tasks, workers, jobs and disk space, in lists of bounded length."""
    with session_scope() as session:
        at = now(session)
        waiting = _waiting_tasks(session, at)
        claimed = session.scalars(
            select(Task)
            .where(Task.state.in_(ACTIVE_STATES), Task.lease_owner.is_not(None), Task.lease_expires_at >= at)
            .order_by(Task.position)
        ).all()
        queue = [
            operations.QueuedTask(
                id=task.id,
                name=task.name,
                state=task.state,
                kind="upgrade" if task.upgrades else "append" if task.into else "domain",
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
                operations.WorkerDetails,
                row,
                alive=at - row.seen_at < ALIVE,
                gpus=row.gpus or [],
                task=tasks.get(row.name),
            )
            for row in rows
        ]
    free, total = disk_space()
    return operations.OperationsStatus(
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


def _running(session: Session, task: Task) -> operations.RunningTask:
    events = session.execute(
        select(Event.at, Event.data)
        .where(Event.task_id == task.id, Event.kind == "progress")
        .order_by(Event.id.desc())
        .limit(_POINTS)
    ).all()
    reports = [(at, TaskProgress.model_validate(data).model_dump()) for at, data in reversed(events)]
    points = [operations.TrainingPoint(at=at, **report) for at, report in reports]
    return operations.RunningTask(id=task.id, name=task.name, state=task.state, points=points)  # type: ignore[arg-type]


def _compactable_bytes() -> int:
    manifest, _ = published_manifest()
    return sum(
        segment.bytes
        for task in manifest.shards
        if task in manifest.tombstones or task in manifest.appended
        for segment in manifest.segments(task)
    )
