"""``cinestrata sync``: bring a domain up to date with a folder of videos (:mod:`service.syncs.sync_plan`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from cinestrata_schemas.choice_types import VanishedVideos
from cinestrata_schemas.tasks import TaskDetails
from cinestrata_schemas.videos import VideoPatch, VideoSummary
from cli.commands.ingest_command import default_name
from cli.commands.task_commands import follow
from cli.commands.video_sending import LearnedDomain, NewDomain
from cli.commands.video_sources import VideoSource, open_source, print_left_out
from cli.console import LEFT_OUT, console, fail, print_json, refuse_call
from cli.service_client import FINAL_STATES, PAGE, ServiceClient, connect
from service.core.domain_names import name_key
from service.syncs.source_listing import SourceFiles
from service.syncs.sync_plan import SyncPlan, abandoned_appends, plan_sync, relearned_domains

MAX_APPENDED = 1000  # videos per append, so that an interrupted sync loses little


def run_sync(
    source: str | Path,
    name: str | None,
    vanished: VanishedVideos,
    dry_run: bool,
    in_place: bool,
    encoding: str | None,
    captions_from_names: bool,
    strict: bool,
    url: str | None,
    data: Path | None,
) -> None:
    """Append new files from a folder to a domain, replace changed ones, and report or delete vanished ones.

    Creates the domain if it does not exist. Exits with status 1 if a task or append does not become ready, and with
    status 3 if files were left out.

    Args:
        source: Path or URI of a folder of videos, or of its manifest.
        name: Name of the domain; None: derived from the path.
        vanished: Whether to keep or delete videos whose file is gone.
        dry_run: Whether to only print the plan.
        in_place: Whether to send paths instead of file contents.
        encoding: Encoding of the manifest or the sidecar files; None is UTF-8.
        captions_from_names: Whether to use the file name as the caption of a video without captions.
        strict: Whether to change nothing if a file cannot be used.
        url: URL of a running service; None: use the data folder in this process.
        data: Data folder; None: from the environment.
    """
    name = name or default_name(source)
    opened = open_source(source, encoding, captions_from_names, in_place, is_remote=url is not None)
    found = opened.files()
    client = connect(url, data)
    key = name_key(name)
    domain = next(
        (
            task
            for task in client.list_tasks()
            if task.into is None and key in (name_key(task.name), task.slug)
        ),
        None,
    )
    if not dry_run:
        _finish_appends(client, domain)
    plan = _plan(opened, found, _stored_videos(client, domain), domain.name if domain else name)
    _print_plan(name, plan, vanished)
    document = _plan_document(name, plan)
    if dry_run:
        print_json(document)
        return
    if strict and plan.left_out:
        refuse_call("Files cannot be used; nothing was changed.", "Correct them, or omit --strict.")
    sent = [*plan.new, *plan.changed]
    if domain is None and not sent:
        fail("No file in the source can be used.", "Nothing was created.")
    if domain is None:
        domain = opened.send(NewDomain(client, name, None, None), sent)
        _require_ready(client, domain)
        _finish(document)
        return
    if domain.state != "ready" and sent:
        fail(f"{name} is {domain.state}.", "Sync again once it is ready.")
    target = LearnedDomain(client, relearned_domains(client.list_tasks(), domain)[-1].id)
    for start in range(0, len(sent), MAX_APPENDED):
        videos = sent[start : start + MAX_APPENDED]
        _require_ready(client, opened.send(target, videos))
    if sent:
        # Old versions are deleted last, so that an interrupted sync never leaves a file without a searchable video.
        plan = _plan(opened, found, _stored_videos(client, domain), domain.name)
    for video, captions in plan.recaptioned.items():
        client.edit_video(video, VideoPatch(captions=captions))
    if gone := [*plan.outdated, *(plan.vanished if vanished == "delete" else ())]:
        client.remove_videos(gone)
    _finish(document)


def _finish(document: dict[str, Any]) -> None:
    print_json(document)
    if document["left_out"]:
        raise typer.Exit(LEFT_OUT)


def _plan(source: VideoSource, found: SourceFiles, stored: Sequence[VideoSummary], domain: str) -> SyncPlan:
    plan = plan_sync(found.files, stored, domain=domain, left_out=found.left_out, uploaded=found.uploaded)
    plan.leave_out(source.find_problem)
    return plan


def _require_ready(client: ServiceClient, task: TaskDetails) -> None:
    """Follow a task; exits with status 1 if it does not become ready."""
    if follow(client, [task.id])[0].state != "ready":
        raise typer.Exit(1)


def _finish_appends(client: ServiceClient, domain: TaskDetails | None) -> None:
    """Wait for another sync's appends to the domain; delete failed ones, so that they are sent again."""
    if domain is None:
        return
    appends = [task for task in client.list_tasks() if task.into == domain.id]
    if unfinished := [task.id for task in appends if task.state not in FINAL_STATES]:
        console.print(f"{domain.name} is already receiving videos; waiting for them.")
        follow(client, unfinished)
    for append in abandoned_appends(client.list_tasks(), client.iter_videos(task=domain.id, limit=PAGE)):
        client.delete_task(append)


def _stored_videos(client: ServiceClient, domain: TaskDetails | None) -> list[VideoSummary]:
    """Return the videos of a domain, its appends, and domains that relearned its videos."""
    domains = relearned_domains(client.list_tasks(), domain) if domain else ()
    return [video for task in domains for video in client.iter_videos(task=task.id, limit=PAGE)]


def _plan_document(name: str, plan: SyncPlan) -> dict[str, Any]:
    """Convert a plan to a document for --json; videos are named by URI or ID."""
    return {
        "domain": name,
        "new": [video.uri for video in plan.new],
        "changed": [video.uri for video in plan.changed],
        "recaptioned": plan.recaptioned,
        "vanished": plan.vanished,
        "unchanged": plan.unchanged,
        "rejected": plan.rejected,
        "left_out": dict(plan.left_out_lines(len(plan.left_out))),
    }


def _print_plan(name: str, plan: SyncPlan, vanished: VanishedVideos) -> None:
    console.print(
        f"{name}: {len(plan.new)} new, {len(plan.changed)} changed, {plan.unchanged} unchanged "
        f"({len(plan.recaptioned)} with other captions), "
        f"{len(plan.vanished)} vanished ({'kept' if vanished == 'keep' else 'deleted'})"
        + (f", {len(plan.left_out)} left out" if plan.left_out else "")
    )
    for uri, reason in plan.rejected.items():
        console.print(f"  rejected before: {uri}: {reason}")
    print_left_out(plan.left_out)
