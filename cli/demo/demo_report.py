"""What the demo has to show: the recall matrix, what was forgotten, and three searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.commands.search_commands import result_table
from cli.console import console

if TYPE_CHECKING:
    from service.core.schemas import RecallMatrix, SearchResponse, TaskDetails

__all__ = ["forgetting_facts", "print_forgetting", "print_search", "search_facts", "task_facts"]

Row = Sequence[float | None]
_FACTS = (
    "tasks",
    "mode",
    "matrix_local",
    "matrix_global",
    "bwf_local",
    "bwf_global",
    "fr",
    "hm",
    "zero_shot",
    "router_accuracy",
)
_SHOWN = 3


def print_forgetting(view: RecallMatrix) -> None:
    """The recall matrix over both galleries with the zero-shot row, and the forgetting figures."""
    from rich.table import Table

    shown: tuple[tuple[str, Sequence[Row], float | None], ...] = (
        ("local: each domain searched by itself", view.matrix_local, view.bwf_local),
        ("global: all domains searched at once", view.matrix_global, view.bwf_global),
    )
    for title, matrix, bwf in shown:
        table = Table(
            title=f"Recall@1 in %, {title}",
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
        )
        table.add_column("release", header_style="dim")
        for name in view.tasks:
            table.add_column(name, justify="right", header_style="dim")
        if matrix is view.matrix_local:
            table.add_row("zero-shot", *(_percent(value) for value in view.zero_shot), style="dim")
        for name, row in zip(view.tasks, matrix, strict=True):
            table.add_row(f"after {name}", *(_percent(value) for value in row))
        console.print(table)
        console.print(f"BWF {'local' if matrix is view.matrix_local else 'global'}: {_points(bwf)}\n")


def print_search(query: str, sought: str, found: SearchResponse) -> None:
    """The first results; the sought video stands out."""
    console.print(f"[bold]“{query}”[/bold]", soft_wrap=True)
    console.print(result_table(found, first=_SHOWN, mark=sought))
    rank = _rank(sought, found)
    place = f"at rank {rank}" if rank else f"not among the first {len(found.results)}"
    console.print(f"sought {sought}: {place}; {found.timing_ms.total:.0f} ms\n", soft_wrap=True)


def forgetting_facts(view: RecallMatrix) -> dict[str, Any]:
    """The figures as they go into the report; recalls are shares, 0..1."""
    return view.model_dump(mode="json", include=set(_FACTS))


def search_facts(query: str, sought: str, found: SearchResponse) -> dict[str, Any]:
    """One search as it goes into the report. ``rank`` is null when the sought video is not among the results."""
    rank = _rank(sought, found)
    return {
        "query": query,
        "sought": sought,
        "found": rank is not None,
        "rank": rank,
        "timing_ms": found.timing_ms.model_dump(),
        "results": [result.model_dump(mode="json") for result in found.results],
    }


def task_facts(task: TaskDetails, seconds_in_state: dict[str, float]) -> dict[str, Any]:
    """One task as it goes into the report. ``seconds`` are those that this run has seen pass, by state."""
    taken = (
        (task.finished_at - task.started_at).total_seconds() if task.finished_at and task.started_at else None
    )
    return {
        **task.model_dump(
            mode="json",
            include={"id", "name", "state", "method", "counts", "error", "learned_order", "release"},
        ),
        "rejected": [rejected.model_dump() for rejected in task.rejected],
        "seconds_from_start_to_end": taken,
        "seconds": {state: round(seconds, 2) for state, seconds in seconds_in_state.items()},
    }


def _rank(sought: str, found: SearchResponse) -> int | None:
    return next((result.rank for result in found.results if result.video_id == sought), None)


def _percent(value: float | None) -> str:
    return "·" if value is None else f"{100 * value:.1f}"


def _points(value: float | None) -> str:
    return "not defined yet" if value is None else f"{100 * value:+.2f} points (lower is better)"
