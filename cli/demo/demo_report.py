"""The demo's report as text and JSON: recall matrix, forgetting and sample searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cli.commands.search_commands import answer_line, result_table
from cli.console import console, plain_table

if TYPE_CHECKING:
    from cinestrata_schemas.library import RecallFigures, RecallMatrix
    from cinestrata_schemas.search import SearchResponse


_PRINTED_RESULTS = 3
_TITLES = {"word": "A word", "sentence": "A sentence", "nothing": "A query that nothing matches"}
_GALLERIES = {
    "local": "own shard,\nheld-out videos",
    "local_all": "own shard,\nall videos",
    "global": "all shards,\nheld-out videos",
    "global_all": "all shards,\nall videos",
}


class SampleSearch(NamedTuple):
    """A word, a sentence or a query that nothing matches, and the IDs of the right videos."""

    kind: Literal["word", "sentence", "nothing"]
    text: str
    videos: frozenset[str] = frozenset()


def print_recall(view: RecallMatrix) -> None:
    """Print the newest release's Recall@1, 5 and 10 by domain and gallery, and means over all queries.

    A line below the table warns of domains with few queries.
    """
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
        console.print(f"BWF {gallery}: {_points(bwf)}\n")


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
        found = f"has rank {rank}" if rank else f"is not among the first {len(response.results)} results"
        facts.append(f"The one with this caption {found}.")
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
    known = [cell for cell in cells if cell and cell.queries]
    if not known:
        return "·"
    queries = sum(cell.queries for cell in known)
    sums = (
        sum(cell.queries * value for cell, value in zip(known, values, strict=True))
        for values in zip(*((cell.r1, cell.r5, cell.r10) for cell in known), strict=True)
    )
    return " / ".join(f"{100 * total / queries:.0f}" for total in sums)


def _percent(value: float | None) -> str:
    return "·" if value is None else f"{100 * value:.1f}"


def _points(value: float | None) -> str:
    return "not defined yet" if value is None else f"{100 * value:+.2f} points (lower is better)"
