"""``cinestrata videos``: list videos, and edit their captions and metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cinestrata_schemas.choice_types import EffectiveSplit, VideoStatus
from cli.console import (
    NOTHING_FOUND,
    console,
    fail,
    plain_table,
    print_json,
    refuse_call,
    report_errors,
    video_cell,
)
from cli.shared_options import AsJson, Data, Url, parse_value

if TYPE_CHECKING:
    from rich.table import Table

    from cinestrata_schemas.videos import VideoSummary


app = typer.Typer(help="List videos, and edit their captions and metadata.", no_args_is_help=True)

_STATUS_COLORS = {"accepted": "green", "rejected": "red", "pending": "cyan"}


@app.command("list")
@report_errors
def list_(
    task: Annotated[
        str | None, typer.Option("--task", help="Only videos in this domain (name or ID).")
    ] = None,
    status: Annotated[
        VideoStatus | None,
        typer.Option("--status", help="Only videos with this status."),
    ] = None,
    split: Annotated[
        EffectiveSplit | None,
        typer.Option("--split", help="Only videos with this effective split."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text", help="Only videos whose ID, URI or captions contain this text (case-insensitive)."
        ),
    ] = None,
    sort: Annotated[
        Literal["added", "-added", "id", "-id", "duration", "-duration", "bytes", "-bytes"],
        typer.Option("--sort", help="Sort order; a leading - reverses it."),
    ] = "added",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of videos.")] = 100,
    number: Annotated[int, typer.Option("--page", min=1, help="Page of the list.")] = 1,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", help="Cursor: next_cursor from the previous list with --json."),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List videos in pages, oldest first by default."""
    from cli.service_client import connect

    parameters: dict[str, Any] = {"task": task, "status": status, "split": split, "text": text}
    parameters |= {"sort": sort, "limit": limit, "cursor": cursor}
    given = {name: value for name, value in parameters.items() if value is not None}
    client = connect(url, data)
    page = client.list_videos(**given)
    for position in range(2, number + 1):
        if page.next_cursor is None:
            print_json(page.model_copy(update={"videos": []}))
            fail(f"--page {number}: the list ends on page {position - 1}.", status=NOTHING_FOUND)
        page = client.list_videos(**given | {"cursor": page.next_cursor})
    print_json(page)
    console.print(video_table(page.videos) if page.videos else "No videos.")
    if page.next_cursor is not None:
        console.print(f"For the next page, add --page {number + 1}", style="dim")


@app.command()
@report_errors
def edit(
    video: Annotated[str, typer.Argument(metavar="VIDEO_ID", help="ID of the video.")],
    captions: Annotated[
        list[str] | None,
        typer.Option("--caption", help="Caption that replaces the current captions; may be repeated."),
    ] = None,
    no_captions: Annotated[bool, typer.Option("--no-captions", help="Remove all captions.")] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Metadata field to set; may be repeated."),
    ] = None,
    removed: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Metadata field to remove; may be repeated."),
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Edit a video's captions and metadata, and print them. Searches use them at once; nothing is relearned."""
    from cinestrata_schemas.videos import VideoPatch
    from cli.service_client import connect

    if captions and no_captions:
        refuse_call("--caption cannot be combined with --no-captions.")
    changes: dict[str, Any] = {}
    if captions or no_captions:
        changes["captions"] = captions or []
    if metadata := _metadata_patch(assignments or (), removed or ()):
        changes["metadata"] = metadata
    if not changes:
        refuse_call("Nothing to change.", "Use --caption, --no-captions, --set or --unset.")
    details = connect(url, data).edit_video(video, VideoPatch(**changes))
    print_json(details)
    console.print_json(json.dumps({"captions": details.captions, "metadata": details.metadata}))


def video_table(videos: Sequence[VideoSummary]) -> Table:
    """Build a table of videos: ID, file, status, split, duration, and first caption or reason for rejection."""
    from rich.text import Text

    table = plain_table()
    longest = max((len(video.id) for video in videos), default=0)  # IDs are not wrapped, file names are
    table.add_column("video", overflow="fold", min_width=longest, max_width=max(longest, 30))
    table.add_column("status", no_wrap=True)
    table.add_column("split", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("caption")
    for video in videos:
        caption = video.reason or next(iter(video.captions), "")
        others = len(video.captions) - 1
        table.add_row(
            video_cell(video.id, video.uri),
            Text(video.status, style=_STATUS_COLORS[video.status]),
            video.effective_split or "",
            "" if video.duration is None else f"{video.duration:.1f}",
            f"{caption} (+{others})" if others > 0 and not video.reason else caption,
        )
    return table


def _metadata_patch(assignments: Sequence[str], removed: Sequence[str]) -> dict[str, Any]:
    """Build the metadata for a JSON Merge Patch; values are parsed as JSON if possible, otherwise strings."""
    patch: dict[str, Any] = dict.fromkeys(removed)
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not name or not equals:
            refuse_call(
                f"--set {assignment} is not an assignment.", "Write name=value, for example: --set camera=2"
            )
        if name in patch:
            refuse_call(f"The field {name!r} is given twice.", "Give each field once, in --set or --unset.")
        patch[name] = parse_value(text)
    return patch
