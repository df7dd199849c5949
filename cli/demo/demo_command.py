"""``cinestrata demo``: the whole product at work on three small domains, from nothing to a report."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from cli.commands.task_commands import follow
from cli.console import console, fail, warnings
from cli.demo.demo_report import forgetting_facts, print_forgetting, print_search, search_facts, task_facts
from cli.demo.demo_service import embedded_service, interruptible
from cli.demo.demo_world import DemoWorld
from cli.embedded.data_folder_lock import data_folder_settings, running
from cli.service_client import HttpServiceClient
from service.core.schemas import TaskDetails

__all__ = ["run_demo"]

_RESULTS = 10  # per sample search
_TAKE_OVER_SECONDS = 30


def run_demo(world: DemoWorld, data: Path, port: int | None, leave: bool, report: Path | None) -> None:
    """Show everything once.

    What an earlier run on the same folder has rendered, posted and learned is used again.

    Args:
        leave: return after the report instead of serving on.
        report: also write the facts there, as JSON.
    """
    clock = _Clock()
    with interruptible(), embedded_service(data, port) as url:
        clock.lap("start")
        console.print(f"Cinestrata is up at {url} (dashboard: {url}/admin)", soft_wrap=True)
        media_root = data_folder_settings(data).media_root
        try:
            facts = _show(world, HttpServiceClient(url), media_root, clock)
        except KeyboardInterrupt:
            warnings.print("\nRun it again to go on where it stopped.")
            raise
        facts = {"url": url, **facts, "wall_seconds": clock.laps()}
        if report:
            report.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        console.print(f"The whole took {clock.total():.0f} s.")
        if leave:
            return
        console.print(
            f"\nSearch and dashboard: [bold]{url}[/bold] and [bold]{url}/admin[/bold]. Ctrl-C stops everything."
        )
        with _until_ctrl_c():
            _wait_until_it_ends(data_folder_settings(data).run_dir)


def _show(world: DemoWorld, client: HttpServiceClient, media_root: Path, clock: _Clock) -> dict[str, Any]:
    world.render(media_root)
    clock.lap("render")

    tasks, seconds = _learn(world, client, media_root)
    newest = max(tasks, key=lambda task: task.learned_order or 0)
    _wait_until_served(client, newest.release)
    clock.lap("learn")

    view = client.forgetting()
    facts = forgetting_facts(view)
    console.print()
    print_forgetting(view)
    if view.mode != "latest" and "latest" in view.modes:
        latest = client.forgetting("latest")
        facts["latest"] = forgetting_facts(latest)
        console.print(
            "[dim]Each shard was searched with the query encoder that it was learned with (mode pinned). "
            f"With the newest one for all (mode latest): BWF local {_signed(latest.bwf_local)}, "
            f"BWF global {_signed(latest.bwf_global)}.[/dim]\n",
            soft_wrap=True,
        )
    facts["searches"] = []
    for domain in world.domains:
        video = world.sought(media_root, domain)
        query, sought = video.captions[0], str(video.id)
        found = client.search(query, _RESULTS, None, None)
        print_search(query, sought, found)
        facts["searches"].append(search_facts(query, sought, found))
    clock.lap("search")
    return {
        "tasks": [task_facts(task, seconds[task.id]) for task in tasks],
        "domains": facts.pop("tasks"),
        **facts,
    }


def _learn(
    world: DemoWorld, client: HttpServiceClient, media_root: Path
) -> tuple[list[TaskDetails], dict[str, dict[str, float]]]:
    """Post the domains one after the other and watch until all are laid down.

    Returns:
        the tasks, and the seconds that each was seen in each state.
    """
    known = {task.name: task for task in client.tasks()}
    ids = []
    for domain in world.domains:
        task = known.get(domain)
        if task is None:
            spec = world.spec(media_root, domain)
            task = client.create_task(spec, world.key(spec))
        elif task.state in ("failed", "cancelled"):
            task = client.retry(task.id)
        ids.append(task.id)

    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    last: dict[str, tuple[str, float]] = {}

    def look(task: TaskDetails) -> None:
        now = time.monotonic()
        if task.id in last:
            state, before = last[task.id]
            seconds[task.id][state] += now - before
        last[task.id] = (task.state, now)
        if not console.is_terminal and before_state.get(task.id) != task.state:
            console.print(f"{task.name}: {task.state}")
        before_state[task.id] = task.state

    before_state: dict[str, str] = {}
    tasks = follow(client, ids, look)
    lost = [task for task in tasks if task.state != "ready"]
    if lost:
        fail(
            "\n".join(f"{task.name} is {task.state}: {task.error}" for task in lost), lost[0].error_hint or ""
        )
    return tasks, seconds


def _wait_until_served(client: HttpServiceClient, release: str | None) -> None:
    """The API follows the index on its own, a moment after a task is ready."""
    deadline = time.monotonic() + _TAKE_OVER_SECONDS
    while client.ready().release != release and time.monotonic() < deadline:
        time.sleep(0.1)


def _wait_until_it_ends(run_dir: Path) -> NoReturn:
    """Until Ctrl-C: who leaves the demo open is told when there is nothing behind the address any more."""
    while running(run_dir) is not None:
        time.sleep(1)
    fail("The service has ended.", f"Its logs are in {run_dir}. Run the demo again to go on.")


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self._laps[stage], self._last = now - self._last, now

    def total(self) -> float:
        return time.monotonic() - self._begin

    def laps(self) -> dict[str, float]:
        return {
            **{stage: round(seconds, 2) for stage, seconds in self._laps.items()},
            "total": round(self.total(), 2),
        }


@contextmanager
def _until_ctrl_c() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        console.print()


def _signed(value: float | None) -> str:
    return "not defined" if value is None else f"{100 * value:+.2f}"
