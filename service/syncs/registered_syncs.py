"""Register, list and remove syncs in the catalog, and run them in a worker.

A run has a lease, so two workers never run the same sync at once. When a dead worker's lease expires, the run is sent
again. So is a message that no worker has received. Every step of a run may be interrupted and repeated: the next run
compares the source with the videos stored by then, including those in unfinished appends. A file that two runs send is
rejected once as a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.problems import Action
from cinestrata_schemas.syncs import SyncCounts, SyncDetails, SyncSpec
from cinestrata_schemas.tasks import AppendSpec, OmittedPath, TaskDetails, TaskSpec, VideoSpec
from cinestrata_schemas.uris import redact_uri
from cinestrata_schemas.videos import VideoSummary
from index.arrays import batches
from service.access.audit_log import Actor, acting_as, record_change
from service.catalog.database import now, session_scope
from service.catalog.leases import Lease, acquire, is_leased, revoke
from service.catalog.operation_tables import Sync
from service.catalog.tables import FINAL_STATES, Task, to_response
from service.catalog.task_names import lock_names
from service.core import request_limits
from service.core.errors import CinestrataError, Conflict, InvalidInput, LeaseLost, NotFound, WorkerStopping
from service.core.list_parameters import VideoFilters
from service.core.settings import settings
from service.core.text_rules import name_key, storable
from service.library import deletion, library_listing, video_changes
from service.syncs import sync_plan, synced_files
from service.syncs.source_listing import check_source, find_problem, list_source
from service.syncs.sync_planner import plan_sync
from service.tasks import broker, commands
from service.tasks.ingestion_checks import make_spec
from service.tasks.task_storage import new_id

MAX_APPENDED = 1000  # videos per append, so that an append is soon searchable

_LEASES = 5  # a step of a run, such as a listing page, may take longer than a task's
_MESSAGE_SECONDS = 60.0  # after which a message that no worker has received is sent again
_PAGE = 1000  # videos
_DELETIONS = 500  # videos per transaction
_MAX_LISTED = 20

log = structlog.get_logger(__name__)


def register_sync(spec: SyncSpec) -> SyncDetails:
    """Store a sync, which runs at once and then at its interval; raise InvalidInput, Unavailable.

    It replaces the domain's existing sync: a domain follows one source, and files from a second one would look like
    vanished files of the first. A run of the replaced sync ends at its next step, so that it deletes nothing that the
    new one keeps.
    """
    check_source(spec.source)
    with session_scope(write=True) as session:
        lock_names(session)  # no index covers names that differ in case, or slugs
        existing = _syncs_of_domain(session, spec.name)
        at = now(session)
        for other in existing[1:]:
            revoke(session, "sync", other.id)
            session.delete(other)
        row = existing[0] if existing else Sync(id=new_id("syn"), created_at=at)
        session.add(row)
        for field in SyncSpec.model_fields:
            setattr(row, field, getattr(spec, field))
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
    """Remove a sync by ID, or its domain's name or slug; raise NotFound. A run in progress ends at its next step."""
    text = storable(name_or_id)
    with session_scope(write=True) as session:
        row = session.get(Sync, text) or next(iter(_syncs_of_domain(session, text)), None)
        if row is None:
            raise NotFound(f"There is no sync {name_or_id!r}.", remedy=Action(name="list_syncs"))
        record_change(session, "sync.remove", row.id, {"name": row.name})
        revoke(session, "sync", row.id)
        session.delete(row)


def send_due_syncs() -> int:
    """Send a message for each due sync, and for each run whose worker has died; return how many were sent."""
    with session_scope() as session:
        at = now(session)
        due = session.scalars(select(Sync.id).where(_is_due(at))).all()
    sent = [sync_id for sync_id in due if broker.send_sync(sync_id)]
    for sync_id in sent:
        with session_scope(write=True) as session:
            at = now(session)
            still_due = select(Sync).where(Sync.id == sync_id, _is_due(at)).with_for_update()
            if row := session.scalars(still_due).one_or_none():  # no worker has received the message yet
                row.next_run_at = at + timedelta(seconds=_MESSAGE_SECONDS)
                revoke(session, "sync", sync_id)
    return len(sent)


@dataclass(frozen=True)
class SyncRun:
    """A claimed run of a sync."""

    sync: Sync  # the sync's row when the run was claimed, outside any session
    lease: Lease  # renewed while the run makes progress

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
    """Claim a sync's run; None if it is running, was removed, or has run since the message was sent."""
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


def _details(row: Sync, *, is_running: bool) -> SyncDetails:
    next_run_at = _planned(row) if is_running else row.next_run_at
    return to_response(
        SyncDetails, row, running=is_running, next_run_at=next_run_at, counts=row.counts or None
    )


def run_sync(sync_id: str) -> None:
    """Compare a sync's source with its domain and send the differences, unless it is already running.

    Errors are recorded with the sync. Nothing is deleted if the source cannot be listed completely.
    """
    run = claim_run(sync_id)
    if run is None:
        return
    with run.lease:
        try:
            with acting_as(Actor("worker", f"sync {run.sync.name}")):
                counts = _synchronize(run)
        except (LeaseLost, WorkerStopping) as error:
            log.info("sync_stopped", sync=sync_id, reason=str(error))
        except (CinestrataError, OSError) as error:
            text = _explain(error)
            log.warning("sync_failed", sync=sync_id, name=run.sync.name, error=text)
            run.finish(None, text)
        except Exception as error:
            run.finish(None, f"The run failed ({type(error).__name__}); see the log of the worker.")
            raise
        else:
            run.finish(counts)


def _synchronize(run: SyncRun) -> SyncCounts | None:
    """Send the differences; None while the domain is being learned."""
    source = list_source(run.sync.source, run.sync.captions_from_names, run.lease.tick)
    library = _library()
    domain = _find_domain(run)
    if domain is None:
        plan = _plan(run, library, source, sync_plan.FollowedDomain())
        if not plan.new:
            lines = [f"{path}: {reason}" for path, reason in plan.left_out_lines(_MAX_LISTED)]
            raise InvalidInput.at("source", f"No file in the source can be used. {' '.join(lines)}")
        run.renew()
        videos = source.place(plan.new[: request_limits.MAX_VIDEOS_PER_TASK])
        spec = make_spec(TaskSpec, name=run.sync.name, videos=videos)
        task = commands.create_task(spec, caller="sync").task
        run.renew(task_id=task.id)
        library.record(task.id, source, plan)
        return SyncCounts(new=len(plan.new), **_left_out_counts(plan))
    run.renew(task_id=domain.id)
    if domain.state in ("failed", "cancelled"):
        raise Conflict(
            f"The domain {domain.name!r} is {domain.state}: correct the cause, then retry the task, or "
            "delete it."
        )
    if domain.state != "ready":
        return None  # the next run continues
    tasks = commands.list_tasks()
    domains = sync_plan.relearned_domains(tasks, domain)
    files = list(library.list_files(domain.id, ()))
    stored = list(_stored_videos(domains))
    abandoned = sync_plan.abandoned_appends(tasks, stored, files)
    for append in abandoned:
        deletion.delete_task(append)
    followed = sync_plan.FollowedDomain(
        [video for video in stored if video.task_id not in abandoned],
        files,
        {task.id for task in domains},
        {video.replaces for video in stored if video.replaces and video.task_id in abandoned},
        library.find_former(source, files),
    )
    plan = _plan(run, library, source, followed)
    library.record(domain.id, source, plan)
    deletion.delete_videos(plan.superseded)
    for target, videos in plan.sent_by_domain(followed, domains[-1].id).items():
        for batch in batches(videos, MAX_APPENDED):
            run.renew()
            _append(target, source.place(batch))
    library.edit_texts(plan, run.lease.tick)
    library.record(domain.id, source, plan, is_sent=True)
    is_busy = any(task.into in followed.published and task.state not in FINAL_STATES for task in tasks)
    deleted, notice = 0, None
    if run.sync.vanished == "delete" and plan.vanished:
        previous = SyncCounts.model_validate(run.sync.counts or {})
        # New files do not hide that most others vanished: a notice stays as long as these do.
        had_notice = previous.notice is not None and len(plan.vanished) >= previous.vanished
        if plan.lost_most or had_notice:
            notice = (
                f"{len(plan.vanished)} videos, or more than half, have no file any more, so none was deleted. If that "
                f"is right, synchronize the folder once with: cinestrata sync … --vanished delete --yes"
            )
        elif not (plan.new or plan.changed or is_busy):  # the appends of this and earlier runs come first
            # Files may be back, or in another followed folder.
            gone = sorted(set(plan.vanished) - library.find_existing(source.source, plan, followed))
            for part in batches(gone, _DELETIONS):
                run.renew()
                deletion.delete_videos(part)
            deleted = len(gone)
    return SyncCounts(
        new=len(plan.new),
        changed=len(plan.changed),
        moved=len(plan.renamed),
        recaptioned=len(plan.recaptioned.keys() | plan.transcripts.keys()),
        unchanged=plan.unchanged,
        vanished=len(plan.vanished),
        deleted=deleted,
        rejected=len(plan.rejected),
        notice=notice,
        **_left_out_counts(plan),
    )


def _library() -> sync_plan.FollowedLibrary:
    return sync_plan.FollowedLibrary(
        list_files=synced_files.iterate_files,
        list_sources=synced_files.list_sources,
        record_files=synced_files.record_files,
        get_video=library_listing.get_video,
        edit_video=video_changes.edit_video,
        root=settings().media_root.resolve(),
    )


def _plan(
    run: SyncRun,
    library: sync_plan.FollowedLibrary,
    source: sync_plan.SourceFiles,
    followed: sync_plan.FollowedDomain,
) -> sync_plan.SyncPlan:
    plan = plan_sync(source, followed, library, report_alive=run.lease.tick)
    plan.leave_out(partial(find_problem, source))
    return plan


def _left_out_counts(plan: sync_plan.SyncPlan) -> dict[str, Any]:
    lines = plan.left_out_lines(_MAX_LISTED)
    return {
        "left_out": len(plan.left_out),
        "left_out_files": [OmittedPath(path=path, reason=_hide_media_root(reason)) for path, reason in lines],
    }


def _find_domain(run: SyncRun) -> TaskDetails | None:
    """Find a sync's domain; None if there is none yet. A deleted domain is not created again."""
    key = name_key(run.sync.name)
    for task in commands.list_tasks():
        if task.into is None and key in (name_key(task.name), task.slug):
            return task
    if run.sync.task_id is not None:
        raise Conflict(f"The domain {run.sync.name!r} was deleted. Remove the sync, or register it again.")
    return None


def _append(domain: str, videos: list[VideoSpec]) -> None:  # a kill point of the chaos runs
    commands.append_videos(domain, make_spec(AppendSpec, videos=videos), caller="sync")


def _stored_videos(domains: Sequence[TaskDetails]) -> Iterator[VideoSummary]:
    """Iterate over the videos in domains and in appends to them."""
    for domain in domains:
        wanted = VideoFilters(task=domain.id, limit=_PAGE)
        yield from (page := library_listing.list_videos(wanted)).videos
        while page.next_cursor is not None:
            wanted.cursor = page.next_cursor
            yield from (page := library_listing.list_videos(wanted)).videos


def _explain(error: CinestrataError | OSError) -> str:
    """Word an error without the path of the media root, which clients do not see."""
    text = str(error)
    if isinstance(error, InvalidInput) and error.errors:
        text = " ".join(
            f"{problem.field}: {problem.message} {problem.hint}".strip() for problem in error.errors[:3]
        )
    return _hide_media_root(text)


def _hide_media_root(text: str) -> str:
    root = str(settings().media_root.resolve())
    return text.replace(f"{root}/", "").replace(root, "the media root")
