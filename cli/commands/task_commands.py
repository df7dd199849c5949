"""``cinestrata tasks``: list, show, cancel and retry tasks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from cinestrata_schemas.domain_names import normalize_name
from cinestrata_schemas.tasks import RetrySpec, TaskDetails
from cli.console import CommandGroup, action_command, console, fail, plain_table, print_json, strip_upload
from cli.options import AsJson, Data, MethodSettings, Url, parse_settings
from cli.service_client import FINAL_STATES, ServiceClient, WorkerWatch, connect, print_notice
from service.core.text_rules import name_key

app = CommandGroup(help="List, show, cancel and retry tasks.", no_args_is_help=True)

_POLL_SECONDS = 0.5
_MAX_REJECTED = 5  # shown files of a task
_NAME_COLUMNS = 18  # longer names take several lines
_STATE_COLORS = {"ready": "green", "failed": "red", "cancelled": "yellow"}

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="Name or ID of the task.")]


@app.command("list")
def list_(as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """List all tasks, oldest first."""
    tasks = connect(url, data).list_tasks()
    print_json(tasks)
    console.print(task_table(tasks, show_ids=True))


@app.command()
def show(task: TaskName, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Show a task."""
    details = find_task(connect(url, data), task)
    print_json(details)
    console.print(task_table([details]))


@app.command()
def cancel(task: TaskName, as_json: AsJson = False, url: Url = None, data: Data = None) -> None:
    """Cancel a task. Vectors already published stay searchable."""
    client = connect(url, data)
    _print_state(client.cancel_task(find_task(client, task).id))


@app.command()
def retry(
    task: TaskName,
    method: Annotated[str | None, typer.Option(help="Use another learning method.")] = None,
    assignments: MethodSettings = None,
    backbone: Annotated[str | None, typer.Option(help="Use another encoder of frames and texts.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Queue a failed or cancelled task again, with its own method, settings and backbone by default."""
    client = connect(url, data)
    spec = RetrySpec(method=method, settings=parse_settings(assignments or []), backbone=backbone)
    _print_state(client.retry_task(find_task(client, task).id, body=spec))
    print_notice(client)


def follow(client: ServiceClient, task_ids: Sequence[str]) -> list[TaskDetails]:
    """Show the progress of tasks until all have ended, or no service runs to process them; return them."""
    # A pipe or log file gets a line per change at once; a terminal gets a table that is updated in place.
    steps: dict[str, str] = {}
    workers = WorkerWatch(client)
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            tasks = [client.get_task(task_id) for task_id in task_ids]
            if live is not None:
                live.update(task_table(tasks), refresh=True)
            else:
                for task in tasks:
                    if steps.get(task.id) != _state(task):
                        steps[task.id] = _state(task)
                        console.say(f"{_title(task)}: {_state(task)}")
            if all(task.state in FINAL_STATES for task in tasks):
                break
            workers.check()
            time.sleep(_POLL_SECONDS)
    if not console.is_terminal:
        console.print(task_table(tasks))
    return tasks


def report_created(client: ServiceClient, task: TaskDetails, wait: bool) -> None:
    """Print a new task, and follow it on request; exit with status 1 if that task does not become ready."""
    videos = "1 video" if task.counts.videos == 1 else f"{task.counts.videos} videos"
    what = f"to {task.backbone}, method {task.method}" if task.upgrades else videos
    console.print(f"{_title(task)}: {task.id}, {what}")
    if wait:
        task = follow(client, [task.id])[0]
    else:
        print_notice(client)
    print_json(task)
    if wait and task.state != "ready":
        raise typer.Exit(1)
    if wait and (upgrade := task.progress.upgrade):
        recalls = [
            "not measured" if r1 is None else f"{r1:.1%}" for r1 in (upgrade.r1_before, upgrade.r1_after)
        ]
        console.print(f"Recall@1 within the domain: {recalls[0]} before, {recalls[1]} now.")
        domain = client.get_task(task.into or "")
        if upgrade.remaining:
            console.print(
                f"{upgrade.remaining} of {domain.counts.accepted} videos can't be read, and are searched as before. "
                f"Once their files are back: cinestrata upgrade {domain.slug}"
            )
        console.print(f"To go back, within 14 days: cinestrata upgrade {domain.slug} --undo")
    if wait and task.counts.test:  # an append usually holds out none
        held_out = "1 video is" if task.counts.test == 1 else f"{task.counts.test:,} videos are"
        console.print(f"{held_out} held out to measure recall.")


def task_table(tasks: Sequence[TaskDetails], *, show_ids: bool = False) -> Group:
    """Build a table of tasks that fits 80 columns, and a line for each error and piece of advice."""
    table = plain_table()
    if show_ids:
        table.add_column("id", no_wrap=True)
    table.add_column("task", overflow="fold", max_width=_NAME_COLUMNS)
    for heading in ("state", *(() if show_ids else ("", "loss")), "videos"):
        table.add_column(heading, no_wrap=True)
    for task in tasks:
        progress = task.progress
        bar = ProgressBar(total=1.0, completed=1.0 if task.state == "ready" else progress.fraction, width=8)
        table.add_row(
            *((task.id,) if show_ids else ()),
            _title(task),
            Text(_state(task), style=_STATE_COLORS.get(task.state, "cyan")),
            *(() if show_ids else (bar, "" if progress.loss is None else f"{progress.loss:.3f}")),
            f"{task.counts.accepted}" + (f" (-{task.counts.rejected})" if task.counts.rejected else ""),
        )
    return Group(table, *(line for task in tasks for line in _remarks(task, with_rejected=not show_ids)))


def _state(task: TaskDetails) -> str:
    """Describe the final state, or the current stage with its epoch."""
    progress = task.progress
    epoch = "" if progress.epoch is None else f" {progress.epoch}/{progress.epochs}"
    state = task.state if task.state in FINAL_STATES else f"{progress.stage}{epoch}"
    return f"{state}, reading {task.reading.done} of {task.reading.total}" if task.reading else state


def _remarks(task: TaskDetails, *, with_rejected: bool) -> Iterator[Text]:
    """Yield a task's error, advice and rejected files, as lines that start with its name."""
    progress = task.progress
    if task.error:
        yield Text(f"{_title(task)}: {task.error}", style="red")
    if (
        with_rejected
        and task.state == "ready"
        and task.into
        and not task.upgrades
        and not task.counts.appended
    ):
        yield Text(f"{_title(task)}: nothing to add, {task.counts.rejected} rejected")
        if any((video.reason or "").startswith("same content as ") for video in task.rejected):
            yield Text("Captions of videos that the domain has are updated by `cinestrata sync FOLDER`.")
    if with_rejected and task.state in FINAL_STATES:
        yield from map(Text, _rejected_lines(task))
    if task.error and task.error_hint:
        yield Text(task.error_hint)
    if task.error and task.remedy:
        yield Text(f"Run: {action_command(task.remedy, shown_name(task))}")
    if progress.unmeasured:
        yield Text(f"{_title(task)}: not measured: {progress.unmeasured}", style="yellow")
    if progress.drift and progress.drift.relearn:
        drift = progress.drift
        advice = f"learn them as a new domain: cinestrata relearn {task.into or task.id}"
        recalls = f"recall@{drift.k} {drift.appended:.0%}, domain {drift.domain:.0%}"
        yield Text(f"{_title(task)}: appended videos drift: {recalls}; {advice}", style="yellow")


def shown_name(task: TaskDetails) -> str:
    """Return the name of a task as a command argument, or its ID if the name would need quoting."""
    # An append is named by its domain and ID; a leading dash begins an option.
    return task.id if task.into or task.name.startswith("-") else shlex.quote(task.name)


def _rejected_lines(task: TaskDetails) -> Iterator[str]:
    """Yield lines with rejected files and their reasons; the last line counts the rest."""
    for video in task.rejected[:_MAX_REJECTED]:
        name, reason = strip_upload(video.uri), strip_upload(video.reason)
        yield f"rejected: {reason if name in reason else f'{name}: {reason}'}"
    others = task.counts.rejected - _MAX_REJECTED
    if others > 0:
        name = shown_name(task)
        yield f"{others} more rejected videos: cinestrata api GET /videos task={name} status=rejected"


def _title(task: TaskDetails) -> str:
    """Return the name of a task; an append's name ends with its ID, which takes a third of a table."""
    return task.name.removesuffix(f" {task.id})") + ")" if task.name.endswith(f" {task.id})") else task.name


def _print_state(task: TaskDetails) -> None:
    print_json(task)
    suffix = ", will be cancelled" if task.cancel_requested else ""
    console.print(f"{task.name} ({task.id}): {task.state}{suffix}")


def find_task(client: ServiceClient, name_or_id: str) -> TaskDetails:
    """Find the task with this ID, name or slug; exits with an error if there is none.

    IDs have priority, because a task's name may equal another task's ID.
    """
    tasks = client.list_tasks()
    by_id = (task for task in tasks if task.id == name_or_id)
    by_name = (task for task in tasks if task.name == normalize_name(name_or_id))
    key = name_key(name_or_id)
    by_key = (task for task in tasks if key in (name_key(task.name), task.slug))
    for task in (*by_id, *by_name, *by_key):
        return task
    fail(f"There is no task {name_or_id!r}.", "See `cinestrata tasks list`.")
