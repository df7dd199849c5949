"""Register, list and remove syncs in the catalog, and claim their runs.

A run has a lease, so two workers never run the same sync at once. When a dead worker's lease expires, the run is sent
again. So is a message that no worker has received.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import VanishedVideos
from cinestrata_schemas.problems import Action
from cinestrata_schemas.syncs import SyncCounts, SyncDetails, SyncSpec
from cinestrata_schemas.uri_redaction import redact_uri
from service.access.audit_log import record_change
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease, acquire, is_leased, revoke
from service.catalog.operation_tables import Sync
from service.catalog.tables import Task
from service.catalog.task_names import lock_names
from service.core.errors import NotFound
from service.core.settings import settings
from service.core.text_rules import name_key
from service.syncs.source_listing import check_source
from service.tasks import broker
from service.tasks.task_storage import new_id

_LEASES = 5  # a step of a run, such as a listing page, may take longer than a task's
_MESSAGE_SECONDS = 60.0  # after which a message that no worker has received is sent again


def register_sync(spec: SyncSpec) -> SyncDetails:
    """Store a sync, which runs at once and then at its interval. It replaces the domain's existing sync.

    A domain follows one source: files from a second one would look like vanished files of the first. A run of the
    replaced sync ends at its next step, so that it deletes nothing that the new one keeps.

    Raises:
        InvalidInput: The source is not allowed, or does not exist.
        Unavailable: Nothing was stored; the request can be retried.
    """
    check_source(spec.source)
    with session_scope(write=True) as session:
        lock_names(session)  # no index covers names that differ in case, or slugs
        existing = _syncs_of_domain(session, spec.name)
        at = now(session)
        for other in existing[1:]:
            revoke(session, "sync", other.id)
            session.delete(other)
        if existing:
            row = existing[0]
        else:
            row = Sync(id=new_id("syn"), created_at=at)
            session.add(row)
        row.name = spec.name
        row.source, row.every_seconds = spec.source, spec.every_seconds
        row.vanished, row.captions_from_names = spec.vanished, spec.captions_from_names
        row.next_run_at, row.task_id = at, None  # a deleted domain is created again
        revoke(session, "sync", row.id)
        session.flush()
        facts = {"name": row.name, "source": redact_uri(row.source), "every_seconds": row.every_seconds}
        record_change(session, "sync.register", row.id, facts)
        details = _details(row, is_running=False)
    send_due_syncs()
    return details


def list_syncs() -> list[SyncDetails]:
    """List all syncs by name."""
    with session_scope() as session:
        at = now(session)
        rows = session.execute(select(Sync, is_leased("sync", Sync.id, at)).order_by(Sync.name))
        return [_details(row, is_running=is_running) for row, is_running in rows]


def remove_sync(name_or_id: str) -> None:
    """Remove a sync. Its domain and videos stay; a run in progress ends at its next step.

    Args:
        name_or_id: ID of the sync, or name or slug of its domain; IDs take precedence.

    Raises:
        NotFound: The sync does not exist.
    """
    text = name_or_id.replace("\0", "\ufffd").encode("utf-8", "replace").decode()  # PostgreSQL refuses others
    with session_scope(write=True) as session:
        row = session.get(Sync, text) or next(iter(_syncs_of_domain(session, text)), None)
        if row is None:
            raise NotFound(f"There is no sync {name_or_id!r}.", remedy=Action(name="list_syncs"))
        record_change(session, "sync.remove", row.id, {"name": row.name})
        revoke(session, "sync", row.id)
        session.delete(row)


def send_due_syncs() -> int:
    """Send a message for each due sync, and for each run whose worker has died, and return how many.

    If the broker is unreachable, the sync stays due.
    """
    with session_scope() as session:
        at = now(session)
        due = session.scalars(select(Sync.id).where(_is_due(at))).all()
    sent = [sync_id for sync_id in due if broker.send_sync(sync_id)]
    for sync_id in sent:
        _postpone(sync_id)
    return len(sent)


@dataclass(frozen=True)
class SyncRun:
    """A claimed run of a sync.

    Attributes:
        sync: The sync's row when the run was claimed, outside any session.
        lease: Renewed while the run makes progress.
    """

    sync: Sync
    lease: Lease

    @property
    def previous(self) -> SyncCounts:
        """Counts of the last successful run."""
        return SyncCounts.model_validate(self.sync.counts or {})

    def renew(self, task_id: str | None = None) -> None:
        """Renew the lease before a change, and store the domain's task; raise LeaseLost."""
        with session_scope(write=True) as session:
            row = session.get(Sync, self.sync.id, with_for_update=True)
            if row is None or not self.lease.renew(session):
                raise self.lease.loss()
            row.task_id = task_id or row.task_id

    def finish(self, counts: SyncCounts | None, error: str | None = None) -> None:
        """Record the result and end the lease. A run that lost its lease records nothing."""
        with session_scope(write=True) as session:
            row = session.get(Sync, self.sync.id, with_for_update=True)
            if row is None or not self.lease.release(session):
                return
            row.next_run_at = _planned(row)
            row.finished_at, row.error = now(session), error
            if counts is not None:
                row.counts = counts.model_dump()


def claim_run(sync_id: str) -> SyncRun | None:
    """Claim a sync's run.

    None if it is already running, was removed, or has run since the message was sent.
    """
    with session_scope(write=True) as session:
        at = now(session)
        row = session.get(Sync, sync_id, with_for_update=True)
        if row is None or row.next_run_at > at + timedelta(seconds=_MESSAGE_SECONDS):
            return None
        seconds = _LEASES * settings().lease_seconds
        lease = acquire(session, "sync", sync_id, name=f"The sync {row.name!r}", seconds=seconds)
        if lease is None:
            return None
        row.started_at = row.next_run_at = at
        return SyncRun(row, lease)


def _syncs_of_domain(session: Session, name: str) -> list[Sync]:
    """Find a domain's syncs by name or slug, the exact spelling first."""
    key = name_key(name)
    domain = session.scalars(
        select(Task).where(or_(Task.name_key == key, Task.slug == key)).order_by(Task.position).limit(1)
    ).first()
    keys = {key} if domain is None else {key, domain.name_key, domain.slug}
    rows = session.scalars(select(Sync).with_for_update())
    return sorted((row for row in rows if name_key(row.name) in keys), key=lambda row: row.name != name)


def _is_due(at: datetime) -> ColumnElement[bool]:
    """Build the condition for syncs that are planned to run, or whose worker died during a run."""
    return (Sync.next_run_at <= at) & ~is_leased("sync", Sync.id, at)


def _planned(row: Sync) -> datetime:
    """Plan the run after the last one that started."""
    return (row.started_at or row.created_at) + timedelta(seconds=row.every_seconds)


def _postpone(sync_id: str) -> None:
    """Plan when to send the message again, unless a worker has received it."""
    with session_scope(write=True) as session:
        at = now(session)
        row = session.scalars(
            select(Sync).where(Sync.id == sync_id, _is_due(at)).with_for_update()
        ).one_or_none()
        if row is not None:
            row.next_run_at = at + timedelta(seconds=_MESSAGE_SECONDS)
            revoke(session, "sync", sync_id)


def _details(row: Sync, *, is_running: bool) -> SyncDetails:
    return SyncDetails(
        id=row.id,
        name=row.name,
        source=row.source,
        every_seconds=row.every_seconds,
        vanished=cast(VanishedVideos, row.vanished),
        captions_from_names=row.captions_from_names,
        task_id=row.task_id,
        created_at=row.created_at,
        next_run_at=_planned(row) if is_running else row.next_run_at,
        running=is_running,
        started_at=row.started_at,
        finished_at=row.finished_at,
        error=row.error,
        counts=SyncCounts.model_validate(row.counts) if row.counts else None,
    )
