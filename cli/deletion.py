"""``cinestrata delete`` and ``cinestrata compact``: videos go, and then the room that their vectors take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.console import console, warnings
from cli.folder import enter

if TYPE_CHECKING:
    from service.compaction import Dead

__all__ = ["run_compact", "run_delete"]


def run_delete(videos: Sequence[str], sure: bool, url: str | None, data: Path | None) -> None:
    """Delete, and tell what was not there."""
    from cli.client import connect

    if not sure:
        what = f"video {videos[0]!r}" if len(videos) == 1 else f"{len(videos)} videos"
        typer.confirm(f"Delete {what} for good?", abort=True)
    told = connect(url, data).delete(list(videos))
    console.print(f"{len(told.deleted)} deleted")
    for video in told.not_found:
        warnings.print(f"There is no video {video!r}.", markup=False)


def run_compact(task: str | None, look: bool, data: Path | None) -> None:
    """Show what deleted videos take, and unless asked only to look, get it back."""
    from service.catalog.migrations import upgrade
    from service.compaction import compact, dead

    upgrade(enter(data))
    found = dead(task)
    _show(found)
    for one in found if not look else ():
        if one.wasted:
            with warnings.status(f"Compacting {one.name} …"):
                after = compact(one.task_id)
            console.print(
                f"{one.name}: {one.deleted} vectors dropped, {one.bytes / 1e6:.1f} MB before, {after.bytes / 1e6:.1f} "
                "MB now; what it replaces is swept in an hour"
            )
        elif one.deleted:
            warnings.print(f"{one.name}: every video is deleted, so there is nothing to copy.", markup=False)


def _show(found: Sequence[Dead]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("task", header_style="dim")
    for heading in ("vectors", "deleted", "share", "segments", "MB"):
        table.add_column(heading, header_style="dim", justify="right", no_wrap=True)
    for one in found:
        share = f"{one.deleted / one.vectors:.1%}"
        table.add_row(
            one.name, str(one.vectors), str(one.deleted), share, str(one.segments), f"{one.bytes / 1e6:.1f}"
        )
    console.print(table)
