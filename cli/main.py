"""The ``cinestrata`` command line. Each command imports its implementation when it runs, so that ``--help`` is fast."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.commands import bench_commands, registered_sync_commands, task_commands
from cli.console import fail, report_errors

__all__ = ["app"]

app = typer.Typer(
    help="Text-to-video search that keeps learning and never re-indexes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(task_commands.app, name="tasks")
app.add_typer(registered_sync_commands.app, name="syncs")
app.add_typer(bench_commands.app, name="bench")

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder (default: CINESTRATA_DATA_DIR, or ./cinestrata-data)."),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", help="Encoding of the manifest, for example cp1252 (default: utf-8)."),
]
InPlace = Annotated[
    bool,
    typer.Option(
        "--in-place", help="Send paths instead of file contents; the service must read the same files."
    ),
]
CaptionsFromNames = Annotated[
    bool,
    typer.Option("--captions-from-names", help="Caption videos that have no captions with their file names."),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on (default: 127.0.0.1).")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 for any free port (default: 8000)."),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="CINESTRATA_URL",
        help="URL of a running service, used instead of the data folder.",
    ),
]


@app.command()
@report_errors
def up(data: Data = None, host: Host = None, port: Port = None) -> None:
    """Start API, workers and a private broker on one data folder; Ctrl-C stops all of them."""
    from cli.embedded.up_command import run_up

    run_up(data, host, port)


@app.command()
@report_errors
def serve(
    data: Data = None,
    host: Host = None,
    port: Port = None,
    fd: Annotated[
        int | None, typer.Option(hidden=True, help="File descriptor of an open listening socket.")
    ] = None,
) -> None:
    """Start only the API."""
    from cli.commands.process_commands import run_api

    run_api(data, host, port, fd)


@app.command()
@report_errors
def worker(
    queue: Annotated[
        Literal["cpu", "gpu"], typer.Option("--queue", help="cpu: check videos. gpu: learn and index.")
    ],
    data: Data = None,
) -> None:
    """Start one worker. Several workers may run; tasks are learned one at a time."""
    from cli.commands.process_commands import run_worker

    run_worker(queue, data)


@app.command()
@report_errors
def migrate(data: Data = None) -> None:
    """Upgrade the schema of the catalog (`cinestrata up` does this itself)."""
    from cli.commands.process_commands import run_migrations

    run_migrations(data)


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
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting of the method; may be repeated."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show the progress until the task is ready.")
    ] = True,
    in_place: InPlace = False,
    encoding: Encoding = None,
    captions_from_names: CaptionsFromNames = False,
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
        Literal["keep", "delete"],
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
            fail(
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
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show the progress until the task is ready.")
    ] = True,
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
    k: Annotated[int, typer.Option("-k", help="Number of results.")] = 10,
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Task to search; may be repeated (default: all).")
    ] = None,
    mode: Annotated[
        Literal["pinned", "mapped", "latest"] | None,
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
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Cursor of the next page, printed by the previous search.")
    ] = None,
    url: Url = None,
    data: Data = None,
) -> None:
    """Search videos with a text."""
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
    )


@app.command()
@report_errors
def similar(
    video: Annotated[str, typer.Argument(help="Id of the video.")],
    k: Annotated[int, typer.Option("-k", help="Number of results.")] = 10,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--all", help="Search all tasks with the same encoder instead of only the video's own task."
        ),
    ] = False,
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
    url: Url = None,
    data: Data = None,
) -> None:
    """Permanently delete videos or a task: searches, training and evaluation no longer use them."""
    from cli.commands.deletion_commands import run_delete

    run_delete(videos or (), task, confirmed, url, data)


@app.command()
@report_errors
def compact(
    task: Annotated[str | None, typer.Argument(help="Name or id of a task (default: all).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the disk space of deleted vectors.")
    ] = False,
    data: Data = None,
) -> None:
    """Free the disk space of deleted vectors. Searches continue, and nothing is embedded again."""
    from cli.commands.deletion_commands import run_compact

    run_compact(task, dry_run, data)


@app.command()
@report_errors
def demo(
    exit_after_report: Annotated[
        bool, typer.Option("--exit", help="Stop the service after the report.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write the report to this JSON file.")
    ] = None,
    videos: Annotated[
        Path | None,
        typer.Option(
            "--videos",
            help="Folder of own videos, used instead of rendered ones: one subfolder with captions.csv (columns file, "
            "caption) or manifest.jsonl per domain.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Data folder (default: ./cinestrata-data/demo, with --videos ./cinestrata-data/demo-FOLDER).",
        ),
    ] = None,
    port: Port = None,
    train: Annotated[int | None, typer.Option(hidden=True, min=2, help="Videos per domain.")] = None,
    test: Annotated[int | None, typer.Option(hidden=True, min=1, help="Videos per domain.")] = None,
    domains: Annotated[int | None, typer.Option(hidden=True, min=1, help="Number of domains.")] = None,
) -> None:
    """Learn three domains of rendered videos, or own videos, one after the other; search them and report forgetting."""
    from cli.demo.demo_command import run_demo
    from cli.demo.demo_world import DemoWorld
    from cli.demo.own_videos import OwnVideos

    default = Path("cinestrata-data") / (f"demo-{videos.resolve().name}" if videos else "demo")
    run_demo(
        OwnVideos.read(videos) if videos else DemoWorld().resized(train=train, test=test, domains=domains),
        data or default,
        port,
        exit_after_report,
        report,
    )


@app.command()
@report_errors
def doctor(
    data: Data = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of lines.")
    ] = False,
) -> None:
    """Check software, storage, services and library. Exits with status 1 if a check fails."""
    from cli.commands.doctor import run_doctor

    run_doctor(data, as_json)


@app.command()
@report_errors
def move(
    to: Annotated[Literal["faiss", "milvus"], typer.Option("--to", help="Target vector store.")],
    data: Data = None,
) -> None:
    """Copy the vectors of all tasks to another vector store. The service may run, and nothing is embedded again."""
    from cli.commands.move_command import run_move

    run_move(to, data)


@app.command()
@report_errors
def snapshot(
    target: Annotated[Path, typer.Argument(help="New folder, or new .tar file.")],
    data: Data = None,
    index_only: Annotated[
        bool, typer.Option("--index-only", help="Omit the catalog, because it was dumped separately.")
    ] = False,
) -> None:
    """Back up catalog and index, and verify the backup. The service may run."""
    from cli.commands.backup_commands import run_snapshot

    run_snapshot(target, data, index_only)


@app.command()
@report_errors
def restore(
    source: Annotated[Path, typer.Argument(help="Backup that `cinestrata snapshot` wrote.", exists=True)],
    data: Data = None,
) -> None:
    """Restore a backup into a new data folder, after verifying all checksums."""
    from cli.commands.backup_commands import run_restore

    run_restore(source, data)


if __name__ == "__main__":
    app()
