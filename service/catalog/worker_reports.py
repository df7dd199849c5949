"""Workers' reports in the catalog: when they were last seen, their free disk space and last errors."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.catalog.database import now
from service.catalog.operation_tables import WorkerReport

ALIVE = timedelta(seconds=60)  # maximum age of a running worker's last report
RETENTION = timedelta(days=1)
_MAX_TEXT_CHARS = 2000


def process_name(owner: str = "") -> str:
    """Name a worker's host and process; without an owner, this process's.

    Args:
        owner: Host, process and thread, as in leases.
    """
    parts = owner.rsplit(":", 1)[0] if owner.count(":") >= 2 else owner
    return (parts or f"{socket.gethostname()}:{os.getpid()}")[:255]


def report_worker(session: Session, free_bytes: int | None, gpus: Sequence[Mapping[str, int]] = ()) -> None:
    """Store that this process is alive.

    Args:
        free_bytes: Free disk space in the data folder; None if unknown.
        gpus: Memory of this machine's GPUs, with the fields of ``GpuMemory``.
    """
    row = _row(session, process_name())
    row.seen_at, row.free_bytes, row.gpus = now(session), free_bytes, [dict(gpu) for gpu in gpus]


def record_worker_error(session: Session, owner: str, error: str) -> None:
    """Store a worker's last error, in the caller's transaction."""
    row = _row(session, process_name(owner))
    row.error, row.error_at = error[:_MAX_TEXT_CHARS], now(session)


def count_workers(session: Session) -> tuple[int, int]:
    """Count the running workers, and all that have reported since the last sweep of old reports."""
    seen = select(func.count()).select_from(WorkerReport)
    alive = session.scalar(seen.where(WorkerReport.seen_at > now(session) - ALIVE)) or 0
    return alive, session.scalar(seen) or 0


def sweep_worker_reports(session: Session) -> None:
    """Delete reports of processes not seen for a day."""
    session.execute(delete(WorkerReport).where(WorkerReport.seen_at < now(session) - RETENTION))


def _row(session: Session, name: str) -> WorkerReport:
    row = session.get(WorkerReport, name)
    if row is None:
        row = WorkerReport(name=name, seen_at=now(session))
        session.add(row)
    return row
