"""``cinestrata tasks``: look at tasks, cancel them, retry them, follow them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import console, report_errors

if TYPE_CHECKING:
    from rich.table import Table

    from cli.service_client import ServiceClient
    from service.core.schemas import TaskDetails

__all__ = ["app", "follow", "task_table"]

app = typer.Typer(help="List, show, cancel and retry tasks.", no_args_is_help=True)

_POLL_SECONDS = 0.5
_FINAL = ("ready", "failed", "cancelled")
_COLOURS = {"ready": "green", "failed": "red", "cancelled": "yellow"}

Url = Annotated[str | None, typer.Option("--url", envvar="CINESTRATA_URL", help="Talk HTTP to this service.")]
Data = Annotated[Path | None, typer.Option("--data", help="Data folder.")]
TaskId = Annotated[str, typer.Argument(help="Id of the task (see `tasks list`).")]


@app.command("list")
@report_errors
def list_(url: Url = None, data: Data = None) -> None:
    """All tasks, oldest first."""
    from cli.service_client import connect

    console.print(task_table(connect(url, data).tasks(), ids=True))


@app.command()
@report_errors
def show(task_id: TaskId, url: Url = None, data: Data = None) -> None:
    """Everything about one task, as JSON."""
    from cli.service_client import connect

    console.print_json(connect(url, data).task(task_id).model_dump_json())


@app.command()
@report_errors
def cancel(task_id: TaskId, url: Url = None, data: Data = None) -> None:
    """Stop working on a task; what it has laid down stays."""
    from cli.service_client import connect

    _tell(connect(url, data).cancel(task_id))


@app.command()
@report_errors
def retry(task_id: TaskId, url: Url = None, data: Data = None) -> None:
    """Put a failed or cancelled task back into the line."""
    from cli.service_client import connect

    _tell(connect(url, data).retry(task_id))


def follow(
    client: ServiceClient, task_ids: Sequence[str], look: Callable[[TaskDetails], None] = lambda _: None
) -> list[TaskDetails]:
    """Show the tasks live until all have ended, and return them as they ended.

    Args:
        look: called with every state of every task that was seen.
    """
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            seen = [client.task(task_id) for task_id in task_ids]
            for task in seen:
                look(task)
            live.update(task_table(seen), refresh=console.is_terminal)
            if all(task.state in _FINAL for task in seen):
                return seen
            time.sleep(_POLL_SECONDS)


def task_table(tasks: Sequence[TaskDetails], *, ids: bool = False) -> Table:
    """Tasks with a bar for the stage they are in."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in (
        *(("id",) if ids else ()),
        "task",
        "state",
        "stage",
        "",
        "epoch",
        "loss",
        "videos",
        "left",
    ):
        table.add_column(heading, header_style="dim", no_wrap=True)
    for task in tasks:
        progress = task.progress
        ended = task.state in _FINAL
        table.add_row(
            *((task.id,) if ids else ()),
            task.name,
            Text(task.state, style=_COLOURS.get(task.state, "cyan")),
            "" if ended else progress.stage,
            ProgressBar(total=1.0, completed=1.0 if task.state == "ready" else progress.fraction, width=20),
            "" if progress.epoch is None else f"{progress.epoch}/{progress.epochs}",
            "" if progress.loss is None else f"{progress.loss:.3f}",
            f"{task.counts.accepted}" + (f" (-{task.counts.rejected})" if task.counts.rejected else ""),
            "" if task.eta_seconds is None else f"{task.eta_seconds:.0f} s",
        )
        if task.error:
            table.add_row(*(("",) if ids else ()), "", Text(task.error, style="red"))
        if progress.unmeasured:
            table.add_row(
                *(("",) if ids else ()), "", Text(f"not measured: {progress.unmeasured}", style="yellow")
            )
    return table


def _tell(task: TaskDetails) -> None:
    console.print(
        f"{task.name} ({task.id}): {task.state}" + (", will be cancelled" if task.cancel_requested else "")
    )
