"""Run a registered sync in a worker.

Every step may be interrupted and repeated: the next run compares the source with the videos stored by then, including
those in unfinished appends. A file that two runs send is rejected once as a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import structlog
from pydantic import ValidationError

from cinestrata_schemas.syncs import SyncCounts
from cinestrata_schemas.tasks import AppendSpec, OmittedPath, TaskDetails, TaskSpec, VideoSpec
from cinestrata_schemas.videos import VideoSummary
from index.arrays import batches
from service.access.audit_log import Actor, acting_as
from service.catalog.tables import FINAL_STATES
from service.core import request_limits
from service.core.errors import CinestrataError, Conflict, InvalidInput, LeaseLost, WorkerStopping
from service.core.settings import settings
from service.core.text_rules import name_key
from service.library import deletion, video_changes, video_listing
from service.syncs import synced_files
from service.syncs.registered_syncs import SyncRun, claim_run
from service.syncs.source_listing import find_problem, list_source
from service.syncs.sync_plan import (
    FollowedDomain,
    FollowedLibrary,
    SourceFiles,
    SyncPlan,
    abandoned_appends,
    relearned_domains,
)
from service.syncs.sync_planner import plan_sync
from service.tasks import commands
from service.tasks.ingestion_checks import Spec

MAX_APPENDED = 1000  # videos per append, so that an append is soon searchable
_PAGE = 1000  # videos
_DELETIONS = 500  # videos per transaction
_MAX_LISTED = 20

log = structlog.get_logger(__name__)


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
        plan = _plan(run, library, source, FollowedDomain())
        if not plan.new:
            lines = [f"{path}: {reason}" for path, reason in plan.left_out_lines(_MAX_LISTED)]
            raise InvalidInput.at("source", f"No file in the source can be used. {' '.join(lines)}")
        run.renew()
        task = _create_domain(run, source, plan.new)
        run.renew(task_id=task.id)
        library.record(task.id, source.source, plan, source.place)
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
    domains = relearned_domains(tasks, domain)
    files = list(library.list_files(domain.id, ()))
    stored = list(_stored_videos(domains))
    abandoned = abandoned_appends(tasks, stored, files)
    for append in abandoned:
        deletion.delete_task(append)
    followed = FollowedDomain(
        [video for video in stored if video.task_id not in abandoned],
        files,
        {task.id for task in domains},
        {video.replaces for video in stored if video.replaces and video.task_id in abandoned},
        library.find_former(source, files),
    )
    plan = _plan(run, library, source, followed)
    library.record(domain.id, source.source, plan, source.place)
    deletion.delete_videos(plan.superseded)
    for target, videos in _by_domain(plan, followed, domains[-1]).items():
        for batch in batches(videos, MAX_APPENDED):
            run.renew()
            _append(target, source.place(batch))
    library.edit_texts(plan, run.lease.tick)
    library.record(domain.id, source.source, plan, source.place, is_sent=True)
    is_busy = any(task.into in followed.published and task.state not in FINAL_STATES for task in tasks)
    deleted, notice = 0, None
    if run.sync.vanished == "delete" and plan.vanished:
        # New files do not hide that most others vanished: a notice stays as long as these do.
        had_notice = run.previous.notice is not None and len(plan.vanished) >= run.previous.vanished
        if plan.lost_most or had_notice:
            notice = (
                f"{len(plan.vanished)} videos, or more than half, have no file any more, so none was deleted. If that "
                f"is right, synchronize the folder once with: cinestrata sync … --vanished delete --yes"
            )
        elif not (plan.new or plan.changed or is_busy):  # the appends of this and earlier runs come first
            deleted = _delete_vanished(run, library, source, plan, followed)
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


def _library() -> FollowedLibrary:
    return FollowedLibrary(
        list_files=synced_files.iterate_files,
        list_sources=synced_files.list_sources,
        record_files=synced_files.record_files,
        get_video=video_listing.get_video,
        edit_video=partial(video_changes.edit_video, caller="sync"),
        root=settings().media_root.resolve(),
    )


def _plan(run: SyncRun, library: FollowedLibrary, source: SourceFiles, followed: FollowedDomain) -> SyncPlan:
    plan = plan_sync(
        source,
        followed,
        find_moved=partial(library.find_moved, source.source),
        find_elsewhere=partial(library.find_elsewhere, source.source),
        report_alive=run.lease.tick,
    )
    plan.leave_out(partial(find_problem, source))
    return plan


def _by_domain(plan: SyncPlan, followed: FollowedDomain, newest: TaskDetails) -> dict[str, list[VideoSpec]]:
    """Group the videos to send by domain: a new version goes to that of its video."""
    homes = {video.id: video.task_id for video in followed.videos}
    sent: dict[str, list[VideoSpec]] = {}
    for video in (*plan.new, *plan.changed):
        sent.setdefault(homes.get(video.replaces or "", newest.id), []).append(video)
    return sent


def _delete_vanished(
    run: SyncRun, library: FollowedLibrary, source: SourceFiles, plan: SyncPlan, followed: FollowedDomain
) -> int:
    """Delete the vanished videos that are in no other followed folder, and return how many."""
    gone = sorted(set(plan.vanished) - library.find_existing(plan, followed, source.source))
    for batch in batches(gone, _DELETIONS):
        run.renew()
        deletion.delete_videos(batch)
    return len(gone)


def _left_out_counts(plan: SyncPlan) -> dict[str, Any]:
    lines = plan.left_out_lines(_MAX_LISTED)
    return {
        "left_out": len(plan.left_out),
        "left_out_files": [OmittedPath(path=path, reason=_hide_media_root(reason)) for path, reason in lines],
    }


def _find_domain(run: SyncRun) -> TaskDetails | None:
    """Find a sync's domain; None if there is none yet. A deleted domain is not created again."""
    tasks = [task for task in commands.list_tasks() if task.into is None]
    found = next(
        (task for task in tasks if name_key(run.sync.name) in (name_key(task.name), task.slug)), None
    )
    if found is None and run.sync.task_id is not None:
        raise Conflict(f"The domain {run.sync.name!r} was deleted. Remove the sync, or register it again.")
    return found


def _create_domain(run: SyncRun, source: SourceFiles, videos: Sequence[VideoSpec]) -> TaskDetails:
    limit = request_limits.MAX_VIDEOS_PER_TASK
    spec = _checked(TaskSpec, name=run.sync.name, videos=source.place(videos[:limit]))
    return commands.create_task(spec, caller="sync").task


def _append(domain: str, videos: list[VideoSpec]) -> None:
    commands.append_videos(domain, _checked(AppendSpec, videos=videos), caller="sync")


def _checked(kind: type[Spec], **fields: Any) -> Spec:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise InvalidInput.from_pydantic(error.errors()) from None


def _stored_videos(domains: Sequence[TaskDetails]) -> Iterator[VideoSummary]:
    """Iterate over the videos in domains and in appends to them."""
    for domain in domains:
        cursor: str | None = None
        while True:
            page = video_listing.list_videos(domain.id, cursor=cursor, limit=_PAGE)
            yield from page.videos
            cursor = page.next_cursor
            if cursor is None:
                break


def _explain(error: CinestrataError | OSError) -> str:
    """Word an error without the path of the media root, which clients do not see."""
    text = str(error)
    if isinstance(error, InvalidInput) and error.errors:
        text = " ".join(f"{found.field}: {found.message} {found.hint}".strip() for found in error.errors[:3])
    return _hide_media_root(text)


def _hide_media_root(text: str) -> str:
    root = str(settings().media_root.resolve())
    return text.replace(f"{root}/", "").replace(root, "the media root")
