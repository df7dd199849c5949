"""Commands that start or prepare processes of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.console import report_errors
from cli.shared_options import Data, Host, Port

__all__ = ["app"]

app = typer.Typer()


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
    health_file: Annotated[
        Path | None,
        typer.Option(
            "--health-file", help="File in which the worker writes its health, for probes of containers."
        ),
    ] = None,
) -> None:
    """Start one worker. Several workers may run; tasks are learned one at a time."""
    from cli.commands.process_commands import run_worker

    run_worker(queue, data, health_file)


@app.command()
@report_errors
def migrate(data: Data = None) -> None:
    """Upgrade the schema of the catalog (`cinestrata up` does this itself)."""
    from cli.commands.process_commands import run_migrations

    run_migrations(data)


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
