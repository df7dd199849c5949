"""``cinestrata delete`` and ``compact``: delete videos and tasks, and free their vectors' disk space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands.task_commands import find_task
from cli.console import console, error_console, fail, plain_table, print_json, refuse_call, report_errors
from cli.embedded.data_folder import data_folder_settings
from cli.service_client import FINAL_STATES
from cli.shared_options import AsJson, Data, Url

if TYPE_CHECKING:
    from service.library.compaction import StorageUsage


app = typer.Typer()


@app.command()
@report_errors
def delete(
    videos: Annotated[
        list[str] | None, typer.Argument(metavar="VIDEO_ID...", help="IDs of the videos.", show_default=False)
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Delete this task (name or ID) instead of single videos.")
    ] = None,
    confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Permanently delete videos or a task. Searches, training and evaluation no longer use them."""
    from cli.service_client import connect

    chosen = videos or []
    if bool(chosen) is (task is not None):
        refuse_call("Give video IDs, or one task with --task.")
    client = connect(url, data)
    found = None if task is None else find_task(client, task)
    if found is not None and found.state not in FINAL_STATES:  # fails before the prompt
        fail(
            f"Task {found.name!r} is {found.state} and cannot be deleted.",
            f"Cancel it first: cinestrata tasks cancel {found.id}",
        )
    if not confirmed:
        target = f"video {chosen[0]!r}" if len(chosen) == 1 else f"{len(chosen)} videos"
        if found is not None:
            target = f"task {found.name!r} and all {found.counts.videos} of its videos"
        typer.confirm(f"Permanently delete {target}?", abort=True)
    outcome = client.remove_videos(chosen) if found is None else client.delete_task(found.id)
    print_json(outcome)
    console.print(f"{len(outcome.deleted)} deleted")
    for video in outcome.not_found:
        error_console.print(f"There is no video {video!r}.")


@app.command()
@report_errors
def compact(
    task: Annotated[str | None, typer.Argument(help="Name or ID of a domain (default: all).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the disk space that deleted vectors take.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Free the disk space of deleted vectors. Searches continue, and nothing is re-embedded."""
    if url:
        from cli.commands.service_jobs import run_remote_compaction

        if dry_run:
            refuse_call("--dry-run cannot be combined with --url.", "The library page shows the disk space.")
        run_remote_compaction(url, task)
        return
    from rich.filesize import decimal

    from service.access.audit_log import command_line_actor, set_process_actor
    from service.catalog.migrations import upgrade
    from service.library.compaction import (
        compact,
        storage_usage,
        sweep_frame_caches,
        sweep_index,
        sweep_orphan_thumbnails,
        update_shard_rows,
    )
    from service.storage import index_manifest

    upgrade(data_folder_settings(data))
    set_process_actor(command_line_actor())
    usages = storage_usage(task)
    if dry_run:
        print_json(usages)
    _print_usages(usages)
    if dry_run:
        return
    manifest = index_manifest.read_manifest()
    update_shard_rows(
        manifest, manifest.shards, "shard.compact"
    )  # an earlier compaction may have ended before this step
    for usage in usages:
        if usage.is_compactable:
            with error_console.status(f"Compacting {usage.name} …"):
                compacted = compact(usage.task_id)
            console.print(
                f"{usage.name}: {usage.deleted} vectors dropped, {decimal(usage.bytes)} before, "
                f"{decimal(compacted.bytes)} now; the old files are removed within an hour"
            )
    sweep_index()
    sweep_frame_caches()
    sweep_orphan_thumbnails()
    print_json(storage_usage(task))


def _print_usages(usages: Sequence[StorageUsage]) -> None:
    from rich.filesize import decimal

    table = plain_table("domain")
    for heading in ("vectors", "deleted", "share", "segments", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for usage in usages:
        share = f"{usage.deleted / max(usage.vectors, 1):.1%}"
        counts = (str(usage.vectors), str(usage.deleted), share, str(usage.segments))
        table.add_row(usage.name, *counts, decimal(usage.bytes))
    console.print(table)
