"""``cinestrata delete`` and ``cinestrata compact``: videos go, or a whole task, and then the room that vectors take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.console import console, fail, warnings
from cli.embedded.data_folder_lock import data_folder_settings

if TYPE_CHECKING:
    from cli.service_client import ServiceClient
    from service.core.schemas import TaskDetails
    from service.library.compaction import StorageUsage

__all__ = ["run_compact", "run_delete"]


def run_delete(
    videos: Sequence[str], task: str | None, sure: bool, url: str | None, data: Path | None
) -> None:
    """Delete videos or a whole task, and tell what was not there."""
    from cli.service_client import connect

    if bool(videos) is (task is not None):
        fail("Name videos, or one task with --task.")
    client = connect(url, data)
    whole = None if task is None else _named(client, task)
    if not sure:
        what = f"video {videos[0]!r}" if len(videos) == 1 else f"{len(videos)} videos"
        if whole is not None:
            what = f"task {whole.name!r} with all of its {whole.counts.videos} videos"
        typer.confirm(f"Delete {what} for good?", abort=True)
    told = client.delete(list(videos)) if whole is None else client.delete_task(whole.id)
    console.print(f"{len(told.deleted)} deleted")
    for video in told.not_found:
        warnings.print(f"There is no video {video!r}.", markup=False)


def run_compact(task: str | None, look: bool, data: Path | None) -> None:
    """Show what deleted videos take, and unless asked only to look, get it back."""
    from service.catalog.migrations import upgrade
    from service.library.compaction import (
        compact,
        storage_usage,
        sweep_index,
        sweep_orphan_images,
        update_shard_rows,
    )
    from service.storage import index_manifest

    upgrade(data_folder_settings(data))
    found = storage_usage(task)
    _show(found)
    if look:
        return
    manifest = index_manifest.read_manifest()
    update_shard_rows(manifest, manifest.shards)  # whoever compacted them may have died just before this
    for one in found:
        if one.is_compactable:
            with warnings.status(f"Compacting {one.name} …"):
                after = compact(one.task_id)
            console.print(
                f"{one.name}: {one.deleted} vectors dropped, {one.bytes / 1e6:.1f} MB before, {after.bytes / 1e6:.1f} "
                "MB now; what it replaces is swept in an hour"
            )
    sweep_index()
    sweep_orphan_images()


def _named(client: ServiceClient, task: str) -> TaskDetails:
    """The task with this id or name. An id comes first: a task may be named like another one's id."""
    known = client.tasks()
    for one in [*(t for t in known if t.id == task), *(t for t in known if t.name == task)]:
        return one
    fail(f"There is no task {task!r}.", "See `cinestrata tasks list`.")


def _show(found: Sequence[StorageUsage]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("task", header_style="dim")
    for heading in ("vectors", "deleted", "share", "segments", "MB"):
        table.add_column(heading, header_style="dim", justify="right", no_wrap=True)
    for one in found:
        share = f"{one.deleted / max(one.vectors, 1):.1%}"
        table.add_row(
            one.name, str(one.vectors), str(one.deleted), share, str(one.segments), f"{one.bytes / 1e6:.1f}"
        )
    console.print(table)
