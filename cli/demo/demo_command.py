"""``cinestrata demo``: learn domains of rendered videos or your own, search them and print a report."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cinestrata_schemas.library import RecallFigures, RecallMatrix
from cinestrata_schemas.search import SearchResponse
from cinestrata_schemas.tasks import RetrySpec, TaskDetails
from cli.commands.search_commands import answer_line, result_table
from cli.commands.task_commands import follow
from cli.console import console, error_console, fail, plain_table
from cli.demo.demo_videos import OwnVideos, RenderedVideos, SampleSearch
from cli.embedded.data_folder import data_folder_settings, has_ended, read_lock_holder
from cli.embedded.process_supervisor import die_with_parent, stop_signals
from cli.service_client import ServiceClient
from service.core.settings import DEFAULT_BACKBONE
from service.storage.library_backbone import library_backbone

DemoVideos = RenderedVideos | OwnVideos
_RESULTS, _MAX_RESULTS = 10, 100  # per sample search
_SNAPSHOT_SECONDS = 30
_TASK_FIELDS = {"id", "name", "state", "method", "counts", "error", "learned_order", "release", "rejected"}


def run_demo(
    videos: DemoVideos, data: Path, port: int | None, exit_after_report: bool, report: Path | None
) -> None:
    """Run the demo. Videos and tasks from an earlier run on the same folder are reused."""
    start = time.monotonic()
    # Both signals raise KeyboardInterrupt, so that the demo stops its processes in order.
    interrupts = stop_signals(signal.default_int_handler, signal.SIGINT, signal.SIGTERM)
    with interrupts, embedded_service(data, port) as url:
        console.say(f"Cinestrata is up at {url} (dashboard: {url}/admin)")
        settings = data_folder_settings(data)
        media_root = settings.media_root
        if settings.backbone is None and (backbone := library_backbone(settings)) != DEFAULT_BACKBONE:
            console.say(
                f"The library in {data} was learned with the backbone {backbone}. To use the default, "
                f"{DEFAULT_BACKBONE}, run the demo with another folder: --data FOLDER."
            )
        try:
            results = _learn_and_search(videos, ServiceClient(url), media_root)
        except KeyboardInterrupt:
            error_console.print("\nInterrupted. Run the demo again to continue.")
            raise
        seconds = time.monotonic() - start
        if report:
            document = {"url": url, **results, "seconds": round(seconds, 2)}
            report.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        console.print(f"The demo took {seconds:.0f} s.")
        if exit_after_report:
            return
        console.print(
            f"\nSearch page: [bold]{url}[/bold], dashboard: [bold]{url}/admin[/bold]. Press Ctrl-C to stop.",
            markup=True,
        )
        with suppress(KeyboardInterrupt):
            run_dir = data_folder_settings(data).run_dir
            while read_lock_holder(run_dir) is not None:
                time.sleep(1)
            fail("The service has ended.", f"Its logs are in {run_dir}. Run the demo again to continue.")
        console.print()


def _learn_and_search(videos: DemoVideos, client: ServiceClient, media_root: Path) -> dict[str, Any]:
    """Prepare, learn and search all domains, print the results, and return them for the JSON report."""
    videos.prepare(media_root)
    tasks = _learn(videos, client)
    newest = max(tasks, key=lambda task: task.learned_order or 0).release
    deadline = time.monotonic() + _SNAPSHOT_SECONDS
    while client.readyz().release != newest and time.monotonic() < deadline:  # its snapshot is loaded
        time.sleep(0.1)
    view = client.get_forgetting()
    console.print()
    print_recall(view)
    print_forgetting(view)
    searches = []
    for sample in videos.sample_searches(client):
        response = client.search(sample.text, k=min(max(_RESULTS, len(sample.videos)), _MAX_RESULTS))
        print_search(sample, response)
        searches.append(search_record(sample, response))
    learned = [task.model_dump(mode="json", include=_TASK_FIELDS) for task in tasks]
    return {**view.model_dump(mode="json"), "domains": view.tasks, "tasks": learned, "searches": searches}


def _learn(videos: DemoVideos, client: ServiceClient) -> list[TaskDetails]:
    """Create missing tasks and follow all of them until they are ready."""
    existing = {task.name: task for task in client.list_tasks()}
    ids = []
    for domain, members in videos.videos.items():
        task, count = existing.get(domain), len(members)
        if task is None:
            task = videos.create_task(client, domain)
        elif task.counts.videos != count:
            fail(
                f"The domain {domain} from an earlier run has {task.counts.videos} videos, but the folder has {count}.",
                "Use another data folder: --data FOLDER.",
            )
        elif task.state in ("failed", "cancelled"):
            task = client.retry_task(task.id, body=RetrySpec())
        ids.append(task.id)

    tasks = follow(client, ids)
    unsuccessful = [task for task in tasks if task.state != "ready"]
    if unsuccessful:
        fail(
            "\n".join(f"{task.name} is {task.state}: {task.error}" for task in unsuccessful),
            unsuccessful[0].error_hint or "",
        )
    return tasks


_READY_PREFIX = "Cinestrata is up at "
_STOP_SECONDS = 30


@contextmanager
def embedded_service(data: Path, port: int | None) -> Iterator[str]:
    """Yield the URL of a service on a data folder: a running one, or a new one that stops with the block."""
    holder = read_lock_holder(data_folder_settings(data, uses_running_broker=False).run_dir)
    if holder and "url" in holder and not has_ended(holder):
        console.print(f"Using the service already running on {data}.")
        yield holder["url"]
        return
    command = [sys.executable, "-P", "-m", "cli.main", "up", "--data", str(data)]
    command += [] if port is None else ["--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,  # Ctrl-C in the terminal reaches only the demo, which stops the service in order
            preexec_fn=die_with_parent(),
        ) as process,
    ):
        try:
            with console.status("Starting API, workers and broker …"):
                line = process.stdout.readline() if process.stdout else ""
            if not line.startswith(_READY_PREFIX):
                process.wait()
                errors.seek(0)
                fail(errors.read().strip() or f"The service didn't start. Its logs are in {data / 'run'}.")
            yield line.removeprefix(_READY_PREFIX).strip()
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        with console.status("Stopping …"):
            process.wait(_STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()  # its children are killed with it
        process.wait()


_PRINTED_RESULTS = 3
_TITLES = {"word": "A word", "sentence": "A sentence", "nothing": "A query that nothing matches"}
_GALLERIES = {
    "local": "own shard,\nheld-out videos",
    "local_all": "own shard,\nall videos",
    "global": "all shards,\nheld-out videos",
    "global_all": "all shards,\nall videos",
}


def print_recall(view: RecallMatrix) -> None:
    """Print the newest release's Recall@1, 5 and 10 by domain and gallery, means, and a warning of few queries."""
    console.print(
        "[bold]Recall@1 / @5 / @10 in % of the newest release[/bold] (queries: first captions of the held-out videos)",
        markup=True,
        soft_wrap=True,
    )
    table = plain_table("gallery:\ndomain")
    for title in ("\nqueries", *_GALLERIES.values()):
        table.add_column(title, justify="right")
    for position, name in enumerate(view.tasks):
        figures = [view.newest[gallery][position] for gallery in _GALLERIES]
        queries = next((str(cell.queries) for cell in figures if cell), "0")
        table.add_row(name, queries, *(_three_recalls([cell]) for cell in figures))
    if len(view.tasks) > 1:
        table.add_row(
            "all queries", "", *(_three_recalls(view.newest[gallery]) for gallery in _GALLERIES), style="bold"
        )
    console.print(table)
    counts = [cell.queries for cell in view.newest["local"] if cell and cell.queries]
    if counts and view.served.domains_with_few_queries:
        low, high = min(counts), max(counts)
        number = f"{low} to {high}" if low < high else str(low)
        queries = "query" if high == 1 else "queries"
        console.say(f"{number} {queries} per domain: too few to compare methods.")
    console.print()


def print_forgetting(view: RecallMatrix) -> None:
    """Print the recall matrix of both galleries with the zero-shot row, and backward forgetting (BWF)."""
    galleries: tuple[tuple[str, str, Sequence[Sequence[float | None]], float | None], ...] = (
        ("local", "own shard, held-out videos", view.matrix_local, view.bwf_local),
        ("global", "all shards, held-out videos", view.matrix_global, view.bwf_global),
    )
    for gallery, description, matrix, bwf in galleries:
        console.print(f"[bold]Recall@1 in %, {gallery}[/bold] ({description})", markup=True, soft_wrap=True)
        table = plain_table("release")
        for name in view.tasks:
            table.add_column(name, justify="right")
        if gallery == "local":
            table.add_row("zero-shot", *(_percent(value) for value in view.zero_shot), style="dim")
        for name, row in zip(view.tasks, matrix, strict=True):
            table.add_row(f"after {name}", *(_percent(value) for value in row))
        console.print(table)
        points = "not defined yet" if bwf is None else f"{100 * bwf:+.2f} points (lower is better)"
        console.print(f"BWF {gallery}: {points}\n")


def print_search(sample: SampleSearch, response: SearchResponse) -> None:
    """Print the first results of a sample search, with right videos emphasized, and a summary."""
    console.say(f"{_TITLES[sample.kind]}: “{sample.text}”", style="bold")
    console.print(result_table(response, first=_PRINTED_RESULTS, highlight=sample.videos))
    facts = [answer_line(response)]
    if sample.kind == "word":
        count = min(len(sample.videos), len(response.results))
        facts.append(f"{_right_first(sample, response)} of the first {count} have the word in a caption.")
    elif sample.kind == "sentence":
        rank = _rank(sample, response)
        place = f"has rank {rank}" if rank else f"is not among the first {len(response.results)} results"
        facts.append(f"The one with this caption {place}.")
    console.print(*facts, f"{response.timing_ms.total:.0f} ms\n", soft_wrap=True)


def search_record(sample: SampleSearch, response: SearchResponse) -> dict[str, Any]:
    """Convert a sample search for the JSON report.

    ``right_first`` counts right videos among the first R results, where R videos are right; ``rank`` is the first right
    one's rank, null if the results contain none.
    """
    return {
        "kind": sample.kind,
        "query": sample.text,
        "right": sorted(sample.videos),
        "right_first": _right_first(sample, response),
        "rank": _rank(sample, response),
        "matches": response.matches,
        "matching": response.matching,
        "timing_ms": response.timing_ms.model_dump(),
        "results": [result.model_dump(mode="json") for result in response.results],
    }


def _rank(sample: SampleSearch, response: SearchResponse) -> int | None:
    return next((result.rank for result in response.results if result.video_id in sample.videos), None)


def _right_first(sample: SampleSearch, response: SearchResponse) -> int:
    return sum(result.video_id in sample.videos for result in response.results[: len(sample.videos)])


def _three_recalls(cells: Sequence[RecallFigures | None]) -> str:
    """Format mean Recall@1, 5 and 10 over all queries, in percent."""
    measured = [cell for cell in cells if cell and cell.queries]
    if not measured:
        return "·"
    queries = sum(cell.queries for cell in measured)
    sums = (
        sum(cell.queries * value for cell, value in zip(measured, values, strict=True))
        for values in zip(*((cell.r1, cell.r5, cell.r10) for cell in measured), strict=True)
    )
    return " / ".join(f"{100 * total / queries:.0f}" for total in sums)


def _percent(value: float | None) -> str:
    return "·" if value is None else f"{100 * value:.1f}"
