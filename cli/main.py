"""The ``cinestrata`` command line. Each command imports its implementation when it runs, so that ``--help`` is fast."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.commands import (
    alert_commands,
    bench_commands,
    key_commands,
    registered_sync_commands,
    release_commands,
    stored_snapshot_commands,
    task_commands,
    user_commands,
    video_commands,
    webhook_commands,
)
from cli.console import console
from cli.declarations import library_declarations, process_declarations, video_declarations

__all__ = ["app"]

app = typer.Typer(
    help="Text-to-video search that keeps learning and never re-indexes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"cinestrata {version('cinestrata')}")
        raise typer.Exit


for declarations in (process_declarations, video_declarations, library_declarations):
    app.add_typer(declarations.app)
app.add_typer(task_commands.app, name="tasks")
app.add_typer(video_commands.app, name="videos")
app.add_typer(registered_sync_commands.app)
app.add_typer(release_commands.app)
app.add_typer(stored_snapshot_commands.app)
app.add_typer(alert_commands.app)
app.add_typer(webhook_commands.app, name="webhooks")
app.add_typer(key_commands.app, name="keys")
app.add_typer(user_commands.app, name="users")
app.add_typer(bench_commands.app, name="bench")


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    console.quiet = False  # an earlier command of this process may have had --json


if __name__ == "__main__":
    app()
