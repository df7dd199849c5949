"""The ``cinestrata`` command line. Each command imports its implementation when it runs, so that ``--help`` is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cinestrata_schemas import __version__
from cli.commands import (
    adding_commands,
    api_command,
    backup_commands,
    bench_commands,
    export_command,
    maintenance_commands,
    process_commands,
    search_commands,
    task_commands,
)
from cli.console import CommandGroup, console, error_console
from cli.options import Port

app = CommandGroup(
    help="Text-to-video search that keeps learning and never re-indexes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"cinestrata {__version__}")
        raise typer.Exit


for module in (
    process_commands,
    adding_commands,
    search_commands,
    maintenance_commands,
    backup_commands,
    export_command,
    api_command,
):
    app.add_typer(module.app)
app.add_typer(task_commands.app, name="tasks")
app.add_typer(api_command.keys, name="keys")
app.add_typer(api_command.users, name="users")
app.add_typer(bench_commands.app, name="bench")


@app.command()
def demo(
    exit_after_report: Annotated[bool, typer.Option("--exit", help="Stop after the report.")] = False,
    report: Annotated[Path | None, typer.Option(help="Also write the report to this JSON file.")] = None,
    videos: Annotated[
        Path | None,
        typer.Option(
            help="Folder with your own videos instead of rendered ones: one subfolder per domain, with "
            "captions.csv (columns file, caption) or manifest.jsonl."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Data folder (default: ./cinestrata-data/demo, with --videos ./cinestrata-data/demo-FOLDER)."
        ),
    ] = None,
    port: Port = None,
    train: Annotated[int, typer.Option(hidden=True, min=2, help="Training videos per domain.")] = 45,
    test: Annotated[int, typer.Option(hidden=True, min=1, help="Test videos per domain.")] = 30,
    domains: Annotated[int, typer.Option(hidden=True, min=1, help="Number of domains.")] = 3,
) -> None:
    """Learn three domains of rendered videos, or your own, one by one; search them and report forgetting."""
    from cli.demo.demo_command import run_demo
    from cli.demo.demo_videos import OwnVideos, RenderedVideos

    default = Path("cinestrata-data") / (f"demo-{videos.resolve().name}" if videos else "demo")
    run_demo(
        OwnVideos(videos) if videos else RenderedVideos(domains, train, test),
        data or default,
        port,
        exit_after_report=exit_after_report,
        report=report,
    )


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    # An earlier command in this process may have had --json, or logged its failures.
    console.quiet, error_console.failure_event = False, None


if __name__ == "__main__":
    app()
