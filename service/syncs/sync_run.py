"""Run a registered sync in a worker.

Every step may be interrupted and repeated: the next run compares the source with the videos stored by then, including
those in unfinished appends, and the IDs of synced videos are unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from pydantic import ValidationError

from cinestrata_schemas.syncs import SyncCounts
from cinestrata_schemas.tasks import AppendSpec, TaskDetails, TaskSpec, VideoSpec
from cinestrata_schemas.uploads import OmittedPath
from cinestrata_schemas.videos import VideoPatch, VideoSummary
from service.access.audit_log import Actor, acting_as
from service.core import request_limits
from service.core.domain_names import name_key
from service.core.errors import CinestrataError, Conflict, InvalidInput, LeaseLost, NotFound
from service.core.settings import settings
from service.library import deletion, video_editing, video_listing
from service.syncs.registered_syncs import SyncRun, claim_run
from service.syncs.source_listing import ListedSource, find_problem, list_source
from service.syncs.sync_plan import SyncPlan, abandoned_appends, plan_sync, relearned_domains
from service.tasks import commands

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
    try:
        with acting_as(Actor("worker", f"sync {run.name}")):
            counts = _synchronize(run)
    except LeaseLost as error:
        log.info("sync_stopped", sync=sync_id, reason=str(error))
    except (CinestrataError, OSError) as error:
        text = _explain(error)
        log.warning("sync_failed", sync=sync_id, name=run.name, error=text)
        run.finish(None, text)
    except Exception as error:
        run.finish(None, f"The run failed ({type(error).__name__}); see the log of the worker.")
        raise
    else:
        run.finish(counts)


def _synchronize(run: SyncRun) -> SyncCounts | None:
    """Send the differences; None while the domain is being learned."""
    source = list_source(run.source, run.captions_from_names, run.report_alive)
    domain = _find_domain(run)
    if domain is None:
        plan = _plan(run, source, (), run.name)
        if not plan.new:
            lines = [f"{path}: {reason}" for path, reason in plan.left_out_lines(_MAX_LISTED)]
            raise InvalidInput.at("source", f"No file in the source can be used. {' '.join(lines)}")
        task = _create_domain(run, source, plan.new)
        run.renew(task_id=task.id)
        return SyncCounts(new=len(plan.new), **_left_out_counts(plan))
    run.renew(task_id=domain.id)
    if domain.state in ("failed", "cancelled"):
        raise Conflict(
            f"The domain {domain.name!r} is {domain.state}: correct the cause, then retry the task, or "
            "delete it."
        )
    if domain.state != "ready":
        return None  # the next run continues
    domains = relearned_domains(commands.list_tasks(), domain)
    stored = list(_stored_videos(domains))
    abandoned = abandoned_appends(commands.list_tasks(), stored)
    for append in abandoned:
        deletion.delete_task(append)
    kept = (video for video in stored if video.task_id not in abandoned)
    plan = _plan(run, source, kept, domain.name)
    sent = [*plan.new, *plan.changed]
    for start in range(0, len(sent), MAX_APPENDED):
        run.renew()
        _append(domains[-1], source.place(sent[start : start + MAX_APPENDED]))
    return SyncCounts(
        new=len(plan.new),
        changed=len(plan.changed),
        recaptioned=_replace_captions(run, plan.recaptioned),
        unchanged=plan.unchanged,
        vanished=len(plan.vanished),
        deleted=_delete(run, plan),
        rejected=len(plan.rejected),
        **_left_out_counts(plan),
    )


def _plan(run: SyncRun, source: ListedSource, stored: Iterable[VideoSummary], domain: str) -> SyncPlan:
    plan = plan_sync(source.files, stored, run.report_alive, domain, source.left_out, source.uploaded)
    plan.leave_out(partial(find_problem, source))
    return plan


def _left_out_counts(plan: SyncPlan) -> dict[str, Any]:
    lines = plan.left_out_lines(_MAX_LISTED)
    return {
        "left_out": len(plan.left_out),
        "left_out_files": [OmittedPath(path=path, reason=_hide_media_root(reason)) for path, reason in lines],
    }


def _find_domain(run: SyncRun) -> TaskDetails | None:
    """Find a sync's domain; None if there is none yet. A deleted domain is not created again."""
    tasks = [task for task in commands.list_tasks() if task.into is None]
    found = next((task for task in tasks if name_key(run.name) in (name_key(task.name), task.slug)), None)
    if found is None and run.task_id is not None:
        raise Conflict(f"The domain {run.name!r} was deleted. Remove the sync, or register it again.")
    return found


def _create_domain(run: SyncRun, source: ListedSource, videos: Sequence[VideoSpec]) -> TaskDetails:
    limit = request_limits.MAX_VIDEOS_PER_TASK
    try:
        spec = TaskSpec(name=run.name, videos=source.place(videos[:limit]))
    except ValidationError as error:
        raise InvalidInput.from_pydantic(error.errors()) from None
    return commands.create_task(spec, caller="sync").task


def _append(domain: TaskDetails, videos: list[VideoSpec]) -> None:
    try:
        spec = AppendSpec(videos=videos)
    except ValidationError as error:
        raise InvalidInput.from_pydantic(error.errors()) from None
    commands.append_videos(domain.id, spec, caller="sync")


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


def _replace_captions(run: SyncRun, captions: Mapping[str, list[str]]) -> int:
    """Replace the captions of videos whose files have not changed, and return how many."""
    for video, texts in captions.items():
        run.report_alive()
        with suppress(NotFound):  # deleted since the plan
            video_editing.edit_video(video, VideoPatch(captions=texts), caller="sync")
    return len(captions)


def _delete(run: SyncRun, plan: SyncPlan) -> int:
    """Delete outdated versions once the newer one is searchable, and vanished videos if the sync says so."""
    gone = [*plan.outdated, *(plan.vanished if run.vanished == "delete" else ())]
    for start in range(0, len(gone), _DELETIONS):
        run.renew()
        deletion.delete_videos(gone[start : start + _DELETIONS])
    return len(gone)


def _explain(error: CinestrataError | OSError) -> str:
    """Word an error without the path of the media root, which clients do not see."""
    text = str(error)
    if isinstance(error, InvalidInput) and error.errors:
        text = " ".join(f"{found.field}: {found.message} {found.hint}".strip() for found in error.errors[:3])
    return _hide_media_root(text)


def _hide_media_root(text: str) -> str:
    root = str(settings().media_root.resolve())
    return text.replace(f"{root}/", "").replace(root, "the media root")
