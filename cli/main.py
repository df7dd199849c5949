"""The ``cinestrata`` command line. Each command imports its implementation when it runs, so that ``--help`` is fast."""

from __future__ import annotations

import typer

from cli.commands import (
    bench_commands,
    registered_sync_commands,
    release_commands,
    task_commands,
    video_commands,
)
from cli.declarations import library_declarations, process_declarations, video_declarations

__all__ = ["app"]

app = typer.Typer(
    help="Text-to-video search that keeps learning and never re-indexes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for declarations in (process_declarations, video_declarations, library_declarations):
    app.add_typer(declarations.app)
app.add_typer(task_commands.app, name="tasks")
app.add_typer(video_commands.app, name="videos")
app.add_typer(registered_sync_commands.app, name="syncs")
app.add_typer(release_commands.app, name="releases")
app.add_typer(bench_commands.app, name="bench")


if __name__ == "__main__":
    app()
