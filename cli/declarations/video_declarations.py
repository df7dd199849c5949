"""Commands that add, search and delete videos."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from cinestrata_schemas.choice_types import QueryMode, VanishedVideos
from cli.commands import registered_sync_commands
from cli.console import refuse_call, report_errors
from cli.shared_options import AsJson, CaptionsFromNames, Data, Encoding, InPlace, MethodSettings, Url, Wait

__all__ = ["app"]

app = typer.Typer()


@app.command()
@report_errors
def ingest(
    source: Annotated[
        str,
        typer.Argument(
            help="Manifest (JSONL, CSV, TSV, Parquet or Excel), folder (local, s3:// or gs://), or archive of videos."
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the task (default: from the path).")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", help="Name or id of a learned task: append the videos to its domain."),
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="Learning method (default: the service's).")
    ] = None,
    assignments: MethodSettings = None,
    wait: Wait = True,
    in_place: InPlace = False,
    encoding: Encoding = None,
    captions_from_names: CaptionsFromNames = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Add one domain of videos as a task, or append videos to a domain."""
    from cli.commands.ingest_command import run_ingest

    run_ingest(
        source,
        name,
        into,
        method,
        assignments or (),
        wait,
        in_place,
        encoding,
        captions_from_names,
        url,
        data,
    )


@app.command()
@report_errors
def sync(
    source: Annotated[
        str, typer.Argument(help="Folder of videos, or its manifest: a path, or s3:// or gs://.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the domain (default: from the path).")
    ] = None,
    vanished: Annotated[
        VanishedVideos,
        typer.Option("--vanished", help="Keep or delete videos whose file no longer exists."),
    ] = "keep",
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="INTERVAL",
            help="Let the service follow a source below its media root at an interval, such as 15m, 2h or 1d.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the differences and change nothing.")
    ] = False,
    as_json: AsJson = False,
    in_place: InPlace = False,
    encoding: Encoding = None,
    captions_from_names: CaptionsFromNames = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Bring a domain up to date with a folder: append new files, replace changed ones, skip unchanged ones."""
    from cli.commands.sync_command import run_sync

    if every is not None:
        if dry_run or in_place or encoding:
            refuse_call(
                "--every cannot be combined with --dry-run, --in-place or --encoding.",
                "The service reads the source itself, as UTF-8.",
            )
        registered_sync_commands.run_register(source, name, every, vanished, captions_from_names, url, data)
        return
    run_sync(source, name, vanished, dry_run, in_place, encoding, captions_from_names, url, data)


@app.command()
@report_errors
def relearn(
    domain: Annotated[str, typer.Argument(help="Name or id of the domain's task.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the new domain (default: from the domain's name).")
    ] = None,
    wait: Wait = True,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Learn the videos that were appended to a domain as a new domain, which takes them over."""
    from cli.commands.relearn_command import run_relearn

    run_relearn(domain, name, wait, url, data)


@app.command()
@report_errors
def search(
    query: Annotated[str, typer.Argument(help="Description of the video, in words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of results.")] = 10,
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Task to search; may be repeated (default: all).")
    ] = None,
    mode: Annotated[
        QueryMode | None,
        typer.Option("--mode", help="Query mode (default: the service's)."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=VALUE",
            help="Condition on metadata; also NAME>=N and NAME<=N. May be repeated.",
        ),
    ] = None,
    min_duration: Annotated[
        float | None, typer.Option("--min-duration", help="Minimum duration in seconds.")
    ] = None,
    max_duration: Annotated[
        float | None, typer.Option("--max-duration", help="Maximum duration in seconds.")
    ] = None,
    after: Annotated[
        datetime | None, typer.Option("--after", help="Added at this time or later, UTC.")
    ] = None,
    before: Annotated[datetime | None, typer.Option("--before", help="Added before this time, UTC.")] = None,
    min_score: Annotated[float | None, typer.Option("--min-score", help="Minimum score of a result.")] = None,
    min_confidence: Annotated[
        float | None,
        typer.Option("--min-confidence", help="Minimum confidence of a result, 0..1."),
    ] = None,
    routes: Annotated[
        str | None, typer.Option("--routes", help="auto, all, or the number of most likely tasks to search.")
    ] = None,
    page: Annotated[int, typer.Option("--page", min=1, help="Page of the results.")] = 1,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", help="Cursor of a page: next_cursor of the previous search with --json."),
    ] = None,
    open_first: Annotated[
        bool, typer.Option("--open", help="Open the first result in the browser or player.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Search videos with a text. Exits with status 3 if no video matches."""
    from cli.commands.search_commands import run_search

    run_search(
        query,
        k,
        task,
        mode,
        url,
        data,
        where=where or (),
        min_duration=min_duration,
        max_duration=max_duration,
        arrived_after=after,
        arrived_before=before,
        min_score=min_score,
        min_confidence=min_confidence,
        routes=routes,
        cursor=cursor,
        page=page,
        open_first=open_first,
    )


@app.command()
@report_errors
def similar(
    video: Annotated[str, typer.Argument(help="Id of the video.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of results.")] = 10,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--all", help="Search all tasks with the same encoder instead of only the video's own task."
        ),
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """List the videos most similar to a video."""
    from cli.commands.search_commands import run_similar

    run_similar(video, k, "all" if everywhere else "task", url, data)


@app.command()
@report_errors
def delete(
    videos: Annotated[
        list[str] | None, typer.Argument(metavar="VIDEO_ID...", help="Ids of the videos.", show_default=False)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Name or id of a task to delete, instead of single videos."),
    ] = None,
    confirmed: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Permanently delete videos or a task: searches, training and evaluation no longer use them."""
    from cli.commands.deletion_commands import run_delete

    run_delete(videos or (), task, confirmed, url, data)
