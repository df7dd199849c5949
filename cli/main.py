"""The ``cinestrata`` command. Commands import what they need when they run, so that ``--help`` is quick."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.commands import bench_commands, task_commands
from cli.console import report_errors

__all__ = ["app"]

app = typer.Typer(
    help="Text-to-video search that keeps learning and never re-indexes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(task_commands.app, name="tasks")
app.add_typer(bench_commands.app, name="bench")

Data = Annotated[
    Path | None,
    typer.Option("--data", help="Data folder (default: CINESTRATA_DATA_DIR, or ./cinestrata-data)."),
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on (default: 127.0.0.1).")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help="0: any free one (default: 8000).")
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="CINESTRATA_URL",
        help="Talk HTTP to this service instead of working on the data folder.",
    ),
]


@app.command()
@report_errors
def up(data: Data = None, host: Host = None, port: Port = None) -> None:
    """Start API, workers and a private broker on one data folder; Ctrl-C stops all of it."""
    from cli.embedded.up_command import run_up

    run_up(data, host, port)


@app.command()
@report_errors
def serve(
    data: Data = None,
    host: Host = None,
    port: Port = None,
    fd: Annotated[int | None, typer.Option(hidden=True, help="Serve on this open listening socket.")] = None,
) -> None:
    """Start the API alone."""
    from cli.commands.process_commands import run_api

    run_api(data, host, port, fd)


@app.command()
@report_errors
def worker(
    queue: Annotated[
        Literal["cpu", "gpu"], typer.Option("--queue", help="cpu: examine videos. gpu: learn and index.")
    ],
    data: Data = None,
) -> None:
    """Start one worker; start as many as you like, tasks are still learned one at a time."""
    from cli.commands.process_commands import run_worker

    run_worker(queue, data)


@app.command()
@report_errors
def migrate(data: Data = None) -> None:
    """Bring the catalog's schema up to date (`up` does it by itself)."""
    from cli.commands.process_commands import run_migrations

    run_migrations(data)


@app.command()
@report_errors
def ingest(
    path: Annotated[
        Path,
        typer.Argument(help="A manifest (JSONL or CSV), a folder of videos, or an archive with a manifest."),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the task (default: from the path).")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="How it is learned (default: the service's).")
    ] = None,
    chosen: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the task until it is ready.")] = True,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="The service sees the files where they are: send paths, not bytes."),
    ] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Post one domain of videos as a task."""
    from cli.commands.ingest_command import run_ingest

    run_ingest(path, name, method, chosen or (), wait, in_place, url, data)


@app.command()
@report_errors
def search(
    query: Annotated[str, typer.Argument(help="What should be seen.")],
    k: Annotated[int, typer.Option("-k", help="How many results.")] = 10,
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Search this task; may be repeated (default: all).")
    ] = None,
    mode: Annotated[
        Literal["pinned", "mapped", "latest"] | None,
        typer.Option("--mode", help="Query encoder (default: the service's)."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="NAME=VALUE", help="Metadata it must have; also NAME>=N and NAME<=N."
        ),
    ] = None,
    min_duration: Annotated[float | None, typer.Option("--min-duration", help="Seconds.")] = None,
    max_duration: Annotated[float | None, typer.Option("--max-duration", help="Seconds.")] = None,
    after: Annotated[datetime | None, typer.Option("--after", help="Posted then or later, UTC.")] = None,
    before: Annotated[datetime | None, typer.Option("--before", help="Posted earlier, UTC.")] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Leave out what scores less.")
    ] = None,
    min_confidence: Annotated[
        float | None,
        typer.Option("--min-confidence", help="Leave out what is less likely to be right; 0..1."),
    ] = None,
    routes: Annotated[
        str | None, typer.Option("--routes", help="auto, all, or how many of the likeliest tasks to search.")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where an earlier search ended.")
    ] = None,
    url: Url = None,
    data: Data = None,
) -> None:
    """Find videos by what is seen in them."""
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
    video: Annotated[str, typer.Argument(help="Id of a video.")],
    k: Annotated[int, typer.Option("-k", help="How many results.")] = 10,
    everywhere: Annotated[
        bool, typer.Option("--all", help="In all tasks that the same encoder embedded, not in its own alone.")
    ] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Find videos that are like one."""
    from cli.commands.search_commands import run_similar

    run_similar(video, k, "all" if everywhere else "task", url, data)


@app.command()
@report_errors
def delete(
    videos: Annotated[
        list[str] | None, typer.Argument(metavar="VIDEO_ID...", help="Ids of videos.", show_default=False)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Name or id of a task to delete as a whole, in place of videos."),
    ] = None,
    sure: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Delete videos for good, or a task: they are not found, shown, learned from or measured any more."""
    from cli.commands.deletion_commands import run_delete

    run_delete(videos or (), task, sure, url, data)


@app.command()
@report_errors
def compact(
    task: Annotated[str | None, typer.Argument(help="Name or id of a task (default: all).")] = None,
    look: Annotated[bool, typer.Option("--look", help="Only show what deleted videos take.")] = False,
    data: Data = None,
) -> None:
    """Get back the room that deleted videos take; searches go on meanwhile. Nothing is embedded again."""
    from cli.commands.deletion_commands import run_compact

    run_compact(task, look, data)


@app.command()
@report_errors
def demo(
    leave: Annotated[
        bool, typer.Option("--exit", help="Stop after the report instead of serving on.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write the facts to this JSON file too.")
    ] = None,
    data: Annotated[Path, typer.Option("--data", help="Data folder.")] = Path("cinestrata-data/demo"),
    port: Port = None,
    train: Annotated[int | None, typer.Option(hidden=True, min=2, help="Per category.")] = None,
    test: Annotated[int | None, typer.Option(hidden=True, min=1, help="Per category.")] = None,
    epochs: Annotated[int | None, typer.Option(hidden=True, min=1)] = None,
    domains: Annotated[int | None, typer.Option(hidden=True, min=1, help="How many.")] = None,
) -> None:
    """Render three domains of real videos, learn them one after the other, search them, and show what was kept."""
    from cli.demo.demo_command import run_demo
    from cli.demo.demo_world import DemoWorld

    run_demo(
        DemoWorld().resized(train=train, test=test, epochs=epochs, domains=domains), data, port, leave, report
    )


@app.command()
@report_errors
def doctor(
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of lines.")] = False,
) -> None:
    """Check everything that the product stands on; status 1 when something is wrong."""
    from cli.commands.doctor import run_doctor

    run_doctor(data, as_json)


@app.command()
@report_errors
def move(
    to: Annotated[Literal["faiss", "milvus"], typer.Option("--to", help="Where the vectors shall be.")],
    data: Data = None,
) -> None:
    """Copy the vectors of all tasks to another store, while everything runs; nothing is embedded again."""
    from cli.commands.move_command import run_move

    run_move(to, data)


@app.command()
@report_errors
def snapshot(
    target: Annotated[Path, typer.Argument(help="A new folder, or a new .tar file.")],
    data: Data = None,
    index_only: Annotated[
        bool, typer.Option("--index-only", help="Leave the catalog out, for it was dumped already.")
    ] = False,
) -> None:
    """Copy catalog and index while everything runs, and read the copy back."""
    from cli.commands.backup_commands import run_snapshot

    run_snapshot(target, data, index_only)


@app.command()
@report_errors
def restore(
    source: Annotated[Path, typer.Argument(help="What `cinestrata snapshot` wrote.", exists=True)],
    data: Data = None,
) -> None:
    """Put a snapshot into a new data folder, after comparing every checksum."""
    from cli.commands.backup_commands import run_restore

    run_restore(source, data)


if __name__ == "__main__":
    app()
