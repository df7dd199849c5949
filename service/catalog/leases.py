"""Leases: who may work on something, and until when. Workers' reports: when each was last seen, and its last error.

A lease is an end and a fencing token: in a row of the table ``leases``, or in the row that it protects. One conditional
statement acquires it. The holder renews it only while its work makes progress, so a hanging process is treated like a
dead one: its lease expires, the next holder gets another token, and writes with the old one are refused.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self

import structlog
from sqlalchemy import ColumnElement, String, cast, delete, exists, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import LeaseRow, WorkerReport
from service.core.errors import CinestrataError, LeaseLost, Unavailable, WorkerStopping
from service.core.settings import settings

LeaseKind = Literal["request", "sync", "job", "webhook"]

STALL_SECONDS = 900.0  # a holder without progress for this long loses its lease
ALIVE = timedelta(seconds=60)  # maximum age of a running worker's last report
RETENTION = timedelta(days=1)  # for ended leases, and reports of workers that ended
_MAX_ERROR_CHARS = 2000

stopping = threading.Event()  # set: every Lease.tick in this process raises WorkerStopping

log = structlog.get_logger(__name__)


class Lease:
    """A held lease. As a context manager, it renews itself three times within its duration, and is released at the end.

    Args:
        name: What it protects, for errors and logs.
        token: Fencing token of this holder.
        until: Column with the lease's end.
        is_held: Condition for the row, as long as this holder has the lease.
        seconds: Duration; None: ``settings().lease_seconds``.
        needs_progress: Whether it expires without :meth:`tick` within ``STALL_SECONDS``.
        on_renewal: Called in the transaction of each renewal in the background.
    """

    def __init__(
        self,
        name: str,
        token: int,
        until: InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None],
        is_held: ColumnElement[bool],
        *,
        seconds: float | None = None,
        needs_progress: bool = True,
        on_renewal: Callable[[Session], None] | None = None,
    ) -> None:
        self.name, self.token = name, token
        self.seconds = settings().lease_seconds if seconds is None else seconds
        self._until, self._is_held = until, is_held
        self._needs_progress = needs_progress
        self._on_renewal = on_renewal
        self._ticks = 0
        self._lost = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease of {name}", daemon=True)

    @property
    def is_ended(self) -> bool:
        """Whether the holder has ended the lease."""
        return self._ended.is_set()

    def tick(self) -> None:
        """Report that the work makes progress; raise LeaseLost or WorkerStopping if it must stop."""
        self._ticks += 1
        if self._lost.is_set():
            raise self.loss()
        if stopping.is_set():
            raise WorkerStopping("This worker is stopping; another one continues its work.")

    def loss(self) -> LeaseLost:
        """Note that another process may hold the lease, and return the error that says so."""
        self._lost.set()
        return LeaseLost(f"{self.name} no longer belongs to this worker.")

    def renew(self, session: Session) -> bool:
        """Renew the lease, and lock its row until commit; False if it is lost."""
        return self._set_end(session, now(session) + timedelta(seconds=self.seconds))

    def release(self, session: Session) -> bool:
        """End the lease now; False if it was lost before."""
        self.end()
        return self._set_end(session, now(session))

    def end(self) -> None:
        """Note that a transaction of the holder has ended the lease."""
        self._ended.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_held = not self.is_ended
        self.end()
        if self._thread.is_alive():
            self._thread.join()
        if is_held:
            with suppress(CinestrataError), session_scope(write=True) as session:  # it expires anyway
                self.release(session)

    def _set_end(self, session: Session, until: datetime) -> bool:
        row = session.execute(
            update(self._until.class_)
            .where(self._is_held)
            .values({self._until: until})
            .returning(self._until)
            .execution_options(synchronize_session=False)
        ).first()
        return row is not None

    def _run(self) -> None:
        last_ticks, last_progress = self._ticks, time.monotonic()
        while not self._ended.wait(self.seconds / 3):
            if self._ticks != last_ticks or not self._needs_progress:
                last_ticks, last_progress = self._ticks, time.monotonic()
            elif time.monotonic() - last_progress > STALL_SECONDS:
                log.warning("lease_not_renewed", reason="The work makes no progress.", lease=self.name)
                continue
            try:
                with session_scope(write=True) as session:
                    is_held = self.renew(session)
                    if is_held and self._on_renewal is not None:
                        self._on_renewal(session)
            except Unavailable:
                log.warning("lease_not_renewed", reason="The catalog is unreachable.", lease=self.name)
                continue
            if not is_held:
                if not self.is_ended:
                    self._lost.set()
                    log.info("lease_lost", lease=self.name)
                return


def acquire(
    session: Session,
    kind: LeaseKind,
    key: str,
    *,
    name: str = "",
    seconds: float | None = None,
    needs_progress: bool = True,
) -> Lease | None:
    """Acquire a lease in the table ``leases`` by kind and ID of what it protects; None while another process holds it.

    The other arguments are those of :class:`Lease`; its name is kind and ID by default.
    """
    at, token = now(session), secrets.randbits(63)
    lease = Lease(
        name or f"{kind} {key}",
        token,
        LeaseRow.until,
        (LeaseRow.kind == kind) & (LeaseRow.id == key) & (LeaseRow.token == token),
        seconds=seconds,
        needs_progress=needs_progress,
    )
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    values = {"token": token, "until": at + timedelta(seconds=lease.seconds)}
    acquired = session.scalar(
        dialect.insert(LeaseRow)
        .values(kind=kind, id=key, **values)
        .on_conflict_do_update(index_elements=["kind", "id"], set_=values, where=LeaseRow.until <= at)
        .returning(LeaseRow.token)
    )
    return lease if acquired is not None else None


def revoke(session: Session, kind: LeaseKind, key: str) -> None:
    """Take a lease away from its holder."""
    session.execute(delete(LeaseRow).where(LeaseRow.kind == kind, LeaseRow.id == key))


def is_leased(
    kind: LeaseKind, key: InstrumentedAttribute[str] | InstrumentedAttribute[int], at: datetime
) -> ColumnElement[bool]:
    """Build the condition for rows that a process holds a lease on, by the column with their keys."""
    return exists().where(LeaseRow.kind == kind, LeaseRow.id == cast(key, String), LeaseRow.until > at)


def sweep_leases(session: Session) -> None:
    """Delete the leases that ended a day ago."""
    session.execute(delete(LeaseRow).where(LeaseRow.until < now(session) - RETENTION))


def process_name(owner: str = "") -> str:
    """Name a worker's host and process, given its host, process and thread as in leases; by default this process."""
    parts = owner.rsplit(":", 1)[0] if owner.count(":") >= 2 else owner
    return (parts or f"{socket.gethostname()}:{os.getpid()}")[:255]


def report_worker(session: Session, free_bytes: int | None, gpus: Sequence[Mapping[str, int]] = ()) -> None:
    """Store that this process is alive, its free disk space if known, and its GPUs with the fields of ``GpuMemory``."""
    row = _row(session, process_name())
    row.seen_at, row.free_bytes, row.gpus = now(session), free_bytes, [dict(gpu) for gpu in gpus]


def record_worker_error(session: Session, owner: str, error: str) -> None:
    """Store a worker's last error, in the caller's transaction."""
    row = _row(session, process_name(owner))
    row.error, row.error_at = error[:_MAX_ERROR_CHARS], now(session)


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
