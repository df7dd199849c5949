"""``cinestrata tasks``: list, show, cancel and retry tasks, and follow their progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import console, fail, report_errors
from cli.service_client import FINAL_STATES
from cli.shared_options import Data, Url
from service.core.domain_names import name_key, normalize_name

if TYPE_CHECKING:
    from rich.table import Table

    from cli.service_client import ServiceClient
    from service.core.schemas import Drift, TaskDetails

__all__ = ["app", "find_task", "follow", "task_table"]

app = typer.Typer(help="List, show, cancel and retry tasks.", no_args_is_help=True)

_POLL_SECONDS = 0.5
_STATE_COLORS = {"ready": "green", "failed": "red", "cancelled": "yellow"}

TaskId = Annotated[str, typer.Argument(help="Id of the task (see `cinestrata tasks list`).")]


@app.command("list")
@report_errors
def list_(url: Url = None, data: Data = None) -> None:
    """List all tasks, oldest first."""
    from cli.connection import connect

    console.print(task_table(connect(url, data).tasks(), show_ids=True))


@app.command()
@report_errors
def show(task_id: TaskId, url: Url = None, data: Data = None) -> None:
    """Print all fields of a task as JSON."""
    from cli.connection import connect

    console.print_json(connect(url, data).task(task_id).model_dump_json())


@app.command()
@report_errors
def cancel(task_id: TaskId, url: Url = None, data: Data = None) -> None:
    """Cancel a task. Vectors that it has already published stay searchable."""
    from cli.connection import connect

    _print_state(connect(url, data).cancel(task_id))


@app.command()
@report_errors
def retry(task_id: TaskId, url: Url = None, data: Data = None) -> None:
    """Queue a failed or cancelled task again."""
    from cli.connection import connect

    _print_state(connect(url, data).retry(task_id))


def follow(
    client: ServiceClient, task_ids: Sequence[str], on_update: Callable[[TaskDetails], None] = lambda _: None
) -> list[TaskDetails]:
    """Show the progress of tasks until all have reached a final state.

    Args:
        on_update: Called with each task after each poll.

    Returns:
        The tasks in their final states.
    """
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        while True:
            tasks = [client.task(task_id) for task_id in task_ids]
            for task in tasks:
                on_update(task)
            live.update(task_table(tasks), refresh=console.is_terminal)
            if all(task.state in FINAL_STATES for task in tasks):
                break
            time.sleep(_POLL_SECONDS)
    if not console.is_terminal:
        console.line()  # Live ends the last line on terminals only
    return tasks


def task_table(tasks: Sequence[TaskDetails], *, show_ids: bool = False) -> Table:
    """A table of tasks with a progress bar for the current stage of each."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    id_heading = ("id",) if show_ids else ()
    for heading in (
        *id_heading,
        "task",
        "state",
        "stage",
        "",
        "epoch",
        "loss",
        "videos",
        "stage left",
        "left",
    ):
        table.add_column(heading, header_style="dim", no_wrap=True)
    for task in tasks:
        progress = task.progress
        is_final = task.state in FINAL_STATES
        table.add_row(
            *((task.id,) if show_ids else ()),
            task.name,
            Text(task.state, style=_STATE_COLORS.get(task.state, "cyan")),
            "" if is_final else progress.stage,
            ProgressBar(total=1.0, completed=1.0 if task.state == "ready" else progress.fraction, width=20),
            "" if progress.epoch is None else f"{progress.epoch}/{progress.epochs}",
            "" if progress.loss is None else f"{progress.loss:.3f}",
            f"{task.counts.accepted}" + (f" (-{task.counts.rejected})" if task.counts.rejected else ""),
            _duration(progress.eta_seconds),
            _duration(task.eta_seconds),
        )
        indent = ("", "") if show_ids else ("",)
        if task.error:
            table.add_row(*indent, Text(task.error, style="red"))
        if progress.unmeasured:
            table.add_row(*indent, Text(f"not measured: {progress.unmeasured}", style="yellow"))
        if progress.drift and progress.drift.relearn:
            table.add_row(*indent, Text(_drift_advice(progress.drift, task.into or task.id), style="yellow"))
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _drift_advice(drift: Drift, domain: str) -> str:
    return (
        f"appended videos drift: recall@{drift.k} {drift.appended:.0%}, domain {drift.domain:.0%}; "
        f"learn them as a new domain: cinestrata relearn {domain}"
    )


def _print_state(task: TaskDetails) -> None:
    suffix = ", will be cancelled" if task.cancel_requested else ""
    console.print(f"{task.name} ({task.id}): {task.state}{suffix}")


def find_task(client: ServiceClient, name_or_id: str) -> TaskDetails:
    """The task with this id, name or slug; exits with an error if there is none.

    Ids have priority, because a task may be named like the id of another.
    """
    tasks = client.tasks()
    by_id = (task for task in tasks if task.id == name_or_id)
    by_name = (task for task in tasks if task.name == normalize_name(name_or_id))
    key = name_key(name_or_id)
    by_key = (task for task in tasks if key in (name_key(task.name), task.slug))
    for task in (*by_id, *by_name, *by_key):
        return task
    fail(f"There is no task {name_or_id!r}.", "See `cinestrata tasks list`.")
