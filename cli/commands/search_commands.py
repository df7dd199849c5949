"""``cinestrata search``: search results as a table."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cinestrata_schemas.choice_types import QueryMode
from cinestrata_schemas.search import SearchResponse, SearchResult
from cli.console import NOTHING_FOUND, CommandGroup, console, fail, plain_table, print_json, video_cell
from cli.options import AsJson, Data, Url, parse_value
from cli.service_client import connect

_LIKELY = 0.5  # lowest confidence of a likely match
_UNSURE_CONFIDENCE = 0.3  # from here on, the first result may be right although nothing matches

app = CommandGroup()


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="Description of the video, in words.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of results.")] = 10,
    task: Annotated[
        list[str] | None, typer.Option(help="Domain to search (name or ID); may be repeated (default: all).")
    ] = None,
    mode: Annotated[QueryMode | None, typer.Option(help="Query encoders (default: the release's).")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Metadata condition; also NAME>=N and NAME<=N; repeatable."),
    ] = None,
    min_duration: Annotated[float | None, typer.Option(help="Minimum duration, seconds.")] = None,
    max_duration: Annotated[float | None, typer.Option(help="Maximum duration, seconds.")] = None,
    after: Annotated[datetime | None, typer.Option(help="Added since this time (UTC).")] = None,
    before: Annotated[datetime | None, typer.Option(help="Added before this time (UTC).")] = None,
    min_score: Annotated[float | None, typer.Option(help="Minimum score of a result.")] = None,
    min_confidence: Annotated[float | None, typer.Option(help="Minimum confidence, 0..1.")] = None,
    routes: Annotated[
        str | None, typer.Option(help="auto, all, or the number of likeliest domains to search.")
    ] = None,
    page: Annotated[int, typer.Option(min=1, help="Page of results.")] = 1,
    cursor: Annotated[
        str | None, typer.Option(help="next_cursor of the previous page, printed with --json.")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    data: Data = None,
) -> None:
    """Search videos by text. Exits with status 3 if no video matches."""
    client = connect(url, data, ask_running=True)
    with console.status("Searching …"):
        fields: dict[str, Any] = {
            "k": k,
            "task": task,
            "mode": mode,
            "where": parse_conditions(where or ()) or None,
            "min_duration": min_duration,
            "max_duration": max_duration,
            "arrived_after": after,
            "arrived_before": before,
            "min_score": min_score,
            "min_confidence": min_confidence,
            "routes": routes,
            "cursor": cursor,
        }
        response = client.search(query, **fields)
        for number in range(2, page + 1):
            if response.next_cursor is None:
                print_json(response.model_copy(update={"results": []}))
                fail(f"--page {page}: results end on page {number - 1}.", status=NOTHING_FOUND)
            fields["cursor"] = response.next_cursor
            response = client.search(query, **fields)
    print_json(response)
    if response.metadata_as_of is not None:
        console.say(
            "The catalog database can't be reached. Results are from "
            f"{response.metadata_as_of.astimezone():%Y-%m-%d %H:%M:%S}, without videos added since.",
            style="yellow",
        )
    if response.corrected is not None:
        console.say(f"Searched for: {response.corrected}", style="yellow")
    if not response.results:
        empty = "Nothing is indexed yet. Add videos: cinestrata ingest FOLDER"
        console.print(empty if response.release is None else "No results. Use other words, or fewer filters.")
        raise typer.Exit(NOTHING_FOUND)
    console.print(result_table(response))
    if response.matches is not None or mode is None:
        console.print(answer_line(response))
    for name, reason in response.degraded.items():
        console.print(f"Not searched: {name}: {reason}", style="yellow")
    searched = sum(task.searched for task in response.routing)
    console.say(
        f"{searched:,} {'domain' if searched == 1 else 'domains'} searched in "
        f"{response.timing_ms.total:,.0f} ms, mode {response.mode}, release {str(response.release)[:12]}",
        style="dim",
    )
    if response.next_cursor is not None:
        console.print(f"For the next page, add --page {page + 1}", style="dim")
    if response.matches is False:
        raise typer.Exit(NOTHING_FOUND)


def parse_conditions(expressions: Sequence[str]) -> dict[str, Any]:
    """Parse metadata conditions: ``name=value``, ``name>=number`` and ``name<=number``; raises InvalidInput.

    A value is parsed as JSON if possible (``3``, ``true``, ``{"any": ["rain", "snow"]}``); otherwise it is a string.
    The two limits of a range form one condition.
    """
    from service.core.errors import InvalidInput

    conditions: dict[str, Any] = {}
    for expression in expressions:
        parts = re.fullmatch(r"(.+?)(>=|<=|=)(.*)", expression, re.DOTALL)
        if parts is None:
            raise InvalidInput.at(
                "where",
                f"{expression!r} is not a condition.",
                "Write name=value, name>=number or name<=number.",
            )
        name, operator, text = parts.groups()
        value = parse_value(text)
        limit = {">=": "min", "<=": "max"}.get(operator)
        existing = conditions.get(name, {})
        if name in conditions and (limit is None or not isinstance(existing, dict) or limit in existing):
            raise InvalidInput.at(
                "where", f"{name!r} is given twice.", 'Combine the values: name={"any": ["a", "b"]}.'
            )
        conditions[name] = value if limit is None else {**existing, limit: value}
    return conditions


def result_table(
    response: SearchResponse, first: int | None = None, highlight: Collection[str] = ()
) -> Table:
    """Build a table of results, best first."""
    table = plain_table()
    table.add_column("", justify="right")
    table.add_column("score", justify="right")
    has_confidence = any(result.confidence is not None for result in response.results)
    if has_confidence:
        table.add_column("match")
    table.add_column("domain", no_wrap=True, max_width=14)
    table.add_column("video", overflow="fold", max_width=30)  # IDs are arguments of other commands
    has_moments = any(map(_best_span, response.results[:first]))
    if has_moments:
        table.add_column("best moment", no_wrap=True)
    table.add_column("caption")
    for result in response.results[:first]:
        is_refused = result.matches is False
        times = (divmod(int(seconds), 60) for seconds in _best_span(result))
        word = "" if is_refused else "likely" if (result.confidence or 0) >= _LIKELY else "possible"
        table.add_row(
            str(result.rank),
            f"{result.score:.3f}",
            *([word] if has_confidence else []),
            result.task,
            video_cell(result.video_id, result.uri),
            *(["–".join(f"{minutes}:{seconds:02}" for minutes, seconds in times)] if has_moments else []),
            _caption_cell(result),
            style="bold green" if result.video_id in highlight else "dim" if is_refused else "",
        )
    return table


def answer_line(response: SearchResponse) -> str:
    """Say how many videos match, or why the library can't tell."""
    if response.matches is False:
        if (response.confidence or 0) >= _UNSURE_CONFIDENCE:
            return "No sure match; the first result may be right."
        return "No video matches this query."
    if response.matching is None:
        return (
            "The library has too few captions to tell which videos match. Add captions to more videos: 30 are "
            "enough."
        )
    return "1 video matches." if response.matching == 1 else f"{response.matching:,} videos match."


def _caption_cell(result: SearchResult) -> Text:
    """Return the matched text with the query's words emphasized, or else the first caption."""
    if not result.words:
        return Text(result.captions[0] if result.captions else "")
    best = result.words[0]
    cell = Text(best.text)
    for start, end in best.marks:
        cell.stylize("bold underline", start, end)
    named = {"name": "file name", "speech": "heard", "screen": "read", "confirmed": "feedback"}
    origin = "transcript" if best.kind == "transcript" else best.field or named.get(best.kind)
    return cell if origin is None else Text.assemble((f"{origin}: ", "dim"), cell)


def _best_span(result: SearchResult) -> tuple[float, ...]:
    """Return start and end of the part whose transcript has the words, or of the best moment; empty without any."""
    said = [
        (text.start, text.end) for text in result.words if text.start is not None and text.end is not None
    ]
    return next(iter([*said, *((moment.start, moment.end) for moment in result.moments)]), ())
