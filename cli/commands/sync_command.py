"""``cinestrata sync``: bring a domain up to date with a folder of videos (:mod:`service.syncs.sync_plan`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from cinestrata_client import NotFoundError
from cinestrata_schemas.choice_types import VanishedVideos
from cinestrata_schemas.syncs import StoredFile
from cinestrata_schemas.tasks import TaskDetails
from cli.commands import video_sources
from cli.commands.task_commands import follow
from cli.console import LEFT_OUT, console, fail, print_json, refuse_call, strip_upload
from cli.service_client import FINAL_STATES, PAGE, ServiceClient, connect
from index.arrays import batches
from service.core.errors import NotFound
from service.core.text_rules import name_key
from service.syncs import sync_plan
from service.syncs.sync_planner import plan_sync

MAX_APPENDED = 1000  # videos per append, so that an interrupted sync loses little


def run_sync(
    source: str | Path,
    *,
    name: str | None,
    vanished: VanishedVideos,
    dry_run: bool,
    in_place: bool,
    encoding: str | None,
    captions_from_names: bool,
    compare_contents: bool,
    yes: bool,
    read: str | None,
    strict: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Append new files from a folder to a domain, replace changed ones, and report or delete vanished ones.

    Creates the domain if it does not exist. Exits with status 1 if a task or append does not become ready, and with
    status 3 if files were left out. The arguments are the options of ``cinestrata sync``.
    """
    opened = video_sources.open_source(
        source, encoding, captions_from_names, in_place, is_remote=url is not None
    )
    source_files = opened.files()
    client = connect(url, data)
    library = _library(client)
    domain = find_domain(client, name or video_sources.default_name(source))
    if name is None:
        followers = [row.task_id for row in library.list_sources() if row.source == source_files.source]
        if domain is None and not followers:
            followers = [*filter(None, [library.find_moved_source(source_files)])]
        if followers:
            domain = domain if domain and domain.id in followers else client.get_task(followers[0])
        elif domain is not None:
            require_own_name(domain.name, source_files, library, list(library.list_files(domain.id, ())))
    unnamed = name is None
    name = domain.name if domain else name or video_sources.default_name(source)
    if domain is not None and read is not None:
        refuse_call(
            f"--read is for a new domain, and {name!r} exists.",
            f"Run `cinestrata read {name!r} --read {read}`, then sync without it.",
        )
    if not dry_run and domain is not None:
        domain = _finish_tasks(client, library, domain)
    plan, followed = _plan(client, library, opened, source_files, domain, compare_contents)
    has_common = bool(plan.followed or plan.unchanged or plan.rejected)
    if unnamed and domain is not None and domain.state == "ready" and followed.videos and not has_common:
        fail(
            f"The domain {name!r} has other videos, and none of this folder.",
            f"Nothing was changed. Choose another name with --name, or add to this domain with --name {name!r}.",
        )
    _print_plan(name, plan, vanished)
    document = {
        "domain": name,
        "new": [video.uri for video in plan.new],
        "changed": [video.uri for video in plan.changed],
        "moved": plan.renamed,
        "recaptioned": plan.recaptioned,
        "vanished": plan.vanished,
        "unchanged": plan.unchanged,
        "rejected": plan.rejected,
        "left_out": dict(plan.left_out_lines(len(plan.left_out))),
    }
    if dry_run:
        print_json(document)
        return
    if strict and plan.left_out:
        refuse_call("Files cannot be used; nothing was changed.", "Correct them, or omit --strict.")
    sent = [*plan.new, *plan.changed]
    if domain is None and not sent:
        fail("No file in the source can be used.", "Nothing was created.")
    if domain is None:
        created = opened.send(video_sources.VideoTarget(client, fields={"name": name, "read": read}), sent)
        library.record(created.id, source_files, plan)
        _require_ready(client, created)
        _finish(document)
        return
    if domain.state != "ready" and sent:
        fail(f"{name} is {domain.state}.", f"Retry it, then sync again: cinestrata tasks retry {domain.id}")
    library.record(domain.id, source_files, plan)
    if plan.superseded:
        client.remove_videos(plan.superseded)
    newest = sync_plan.relearned_domains(client.list_tasks(), domain)[-1].id
    appends = [
        (target, batch)
        for target, videos in plan.sent_by_domain(followed, newest).items()
        for batch in batches(videos, MAX_APPENDED)
    ]
    for target, videos in appends:
        task = opened.send(video_sources.VideoTarget(client, target), videos)
        _require_ready(client, task)
    library.edit_texts(plan)
    library.record(domain.id, source_files, plan, is_sent=True)
    followed_before = plan.followed
    if appends:  # vanished videos are deleted once all others are searchable
        plan, followed = _plan(client, library, opened, source_files, domain)
        library.record(domain.id, source_files, plan)
    if vanished == "delete" and plan.vanished:
        gone = sorted(set(plan.vanished) - library.find_existing(source_files.source, plan, followed))
        if 2 * len(gone) > followed_before and not yes:
            _confirm(len(gone), followed_before)
        if gone:
            client.remove_videos(gone)
    _finish(document)


def _finish(document: dict[str, Any]) -> None:
    print_json(document)
    if document["left_out"]:
        raise typer.Exit(LEFT_OUT)


def find_domain(client: ServiceClient, name: str) -> TaskDetails | None:
    """Find a domain by name or slug; None if there is none."""
    key = name_key(name)
    tasks = (task for task in client.list_tasks() if task.into is None)
    return next((task for task in tasks if key in (name_key(task.name), task.slug)), None)


def require_own_name(
    name: str,
    source_files: sync_plan.SourceFiles,
    library: sync_plan.FollowedLibrary,
    files: Sequence[StoredFile],
) -> None:
    """Exit with status 1 if another folder has given a domain its name."""
    others = {row.source for row in files} - {source_files.source, *library.find_former(source_files, files)}
    if others:
        fail(
            f"The domain {name!r} follows another folder: {max(others)}.",
            f"Nothing was changed. Choose another name with --name, or add to this domain with --name {name!r}.",
        )


def _library(client: ServiceClient) -> sync_plan.FollowedLibrary:
    return sync_plan.FollowedLibrary(
        list_files=lambda domain, sha256: client.iter_synced_files(
            task=domain, sha256=sha256 or None, limit=PAGE
        ),
        list_sources=client.list_synced_sources,
        record_files=client.record_synced_files,
        get_video=lambda video: _with_not_found(client.get_video, video),
        edit_video=lambda video, patch: _with_not_found(client.edit_video, video, patch),
    )


def _with_not_found(operation: Callable[..., Any], *arguments: object) -> Any:
    try:
        return operation(*arguments)
    except NotFoundError as error:
        raise NotFound(str(error)) from error


def _plan(
    client: ServiceClient,
    library: sync_plan.FollowedLibrary,
    source: video_sources.VideoSource,
    source_files: sync_plan.SourceFiles,
    domain: TaskDetails | None,
    compare_contents: bool = False,
) -> tuple[sync_plan.SyncPlan, sync_plan.FollowedDomain]:
    followed = sync_plan.FollowedDomain()
    if domain is not None:
        domains = sync_plan.relearned_domains(client.list_tasks(), domain)
        files = list(library.list_files(domain.id, ()))
        followed = sync_plan.FollowedDomain(
            [video for task in domains for video in client.iter_videos(task=task.id, limit=PAGE)],
            files,
            {task.id for task in domains if task.state == "ready"},
            former=library.find_former(source_files, files),
        )
    plan = plan_sync(source_files, followed, library, compare_contents=compare_contents)
    plan.leave_out(source.find_problem)
    plan.rejected = {path: strip_upload(reason) for path, reason in plan.rejected.items()}
    return plan, followed


def _confirm(vanished: int, followed: int) -> None:
    """Ask before most videos are deleted; exits with status 1 without a yes."""
    text = f"{vanished} of {followed} videos have no file any more."
    if not sys.stdin.isatty():
        fail(
            f"{text} None was deleted.",
            "Check that the disk is mounted. To delete these videos, repeat the command with --yes.",
        )
    if not typer.confirm(f"{text} Delete them?", err=True):
        raise typer.Exit(1)


def _require_ready(client: ServiceClient, task: TaskDetails) -> None:
    """Follow a task; exits with status 1 if it does not become ready."""
    if follow(client, [task.id])[0].state != "ready":
        raise typer.Exit(1)


def _finish_tasks(
    client: ServiceClient, library: sync_plan.FollowedLibrary, domain: TaskDetails
) -> TaskDetails:
    """Wait until a domain and its appends have ended; delete failed appends, so that they are sent again."""
    tasks = [task for task in client.list_tasks() if domain.id in (task.id, task.into)]
    if unfinished := [task.id for task in tasks if task.state not in FINAL_STATES]:
        console.print(f"{domain.name} is already receiving videos; waiting for them.")
        follow(client, unfinished)
    videos = client.iter_videos(task=domain.id, limit=PAGE)
    for append in sync_plan.abandoned_appends(client.list_tasks(), videos, library.list_files(domain.id, ())):
        client.delete_task(append)
    return client.get_task(domain.id)


def _print_plan(name: str, plan: sync_plan.SyncPlan, vanished: VanishedVideos) -> None:
    console.print(
        f"{name}: {len(plan.new)} new, {len(plan.changed)} changed, {plan.unchanged} unchanged "
        f"({len(plan.renamed)} moved, {len(plan.recaptioned.keys() | plan.transcripts.keys())} with other texts), "
        f"{len(plan.vanished)} vanished ({'kept' if vanished == 'keep' else 'deleted'})"
        + (f", {len(plan.left_out)} left out" if plan.left_out else "")
    )
    for uri, reason in plan.rejected.items():
        console.print(f"  rejected before: {uri}: {reason}")
    video_sources.print_left_out(plan.left_out)
