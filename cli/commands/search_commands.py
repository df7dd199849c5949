"""``cinestrata search`` and ``similar``: results as a table."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.console import console

if TYPE_CHECKING:
    from rich.table import Table

    from service.core.schemas import SearchResponse, SearchResult, SimilarVideosResponse
    from service.core.settings import QueryMode

__all__ = ["parse_conditions", "result_table", "run_search", "run_similar"]


def run_search(
    query: str,
    k: int,
    task: list[str] | None,
    mode: QueryMode | None,
    url: str | None,
    data: Path | None,
    *,
    where: Sequence[str] = (),
    **further: Any,
) -> None:
    """Search and print.

    Args:
        where: parse_conditions on metadata, as :func:`parse_conditions` reads them.
        further: the other fields of a ``SearchQuery``.
    """
    from rich.markup import escape

    from cli.service_client import connect

    with console.status("Loading the model …" if url is None else "Searching …"):
        found = connect(url, data).search(
            query, k, task, mode, where=parse_conditions(where) or None, **further
        )
    if not found.results:
        console.print("Nothing is indexed yet." if found.release is None else "No results.")
        return
    console.print(result_table(found))
    for name, reason in found.degraded.items():
        console.print(f"[yellow]Not searched: {escape(name)}: {escape(reason)}[/yellow]")
    timing, searched = found.timing_ms, sum(task.searched for task in found.routing)
    tasks = "task" if searched == 1 else "tasks"
    console.print(
        f"[dim]{searched} {tasks} searched, mode {found.mode}, release {str(found.release)[:12]}, "
        f"{timing.total:.0f} ms (encode {timing.encode:.1f}, route {timing.route:.1f}, "
        f"search {timing.search:.1f}, merge {timing.merge:.1f})[/dim]",
        soft_wrap=True,
    )
    if found.next_cursor is not None:
        console.print(f"[dim]For more: the same with --cursor {found.next_cursor}[/dim]", soft_wrap=True)


def run_similar(video_id: str, k: int, scope: str, url: str | None, data: Path | None) -> None:
    """Print the videos that are most like one."""
    from cli.service_client import connect

    with console.status("Searching …"):
        found = connect(url, data).similar(video_id, k, scope)
    console.print(result_table(found) if found.results else "No results.")
    if found.not_compared:
        names = ", ".join(found.not_compared)
        console.print(f"[dim]Not compared, for another encoder embedded them: {names}[/dim]", soft_wrap=True)


def parse_conditions(written: Sequence[str]) -> dict[str, Any]:
    """Conditions on metadata from ``name=value``, ``name>=number`` and ``name<=number``.

    A value is JSON where it can be read as such (``3``, ``true``, ``{"any": ["rain", "snow"]}``), and a text otherwise;
    the two ends of a range make one condition.

    Raises:
        InvalidInput: names what cannot be read.
    """
    from service.core.errors import InvalidInput

    read: dict[str, Any] = {}
    for text in written:
        parts = re.fullmatch(r"(.+?)(>=|<=|=)(.*)", text, re.DOTALL)
        if parts is None:
            raise InvalidInput.at(
                "where", f"{text!r} is no condition.", "Write name=value, name>=number or name<=number."
            )
        name, sign, rest = parts.groups()
        try:
            value = json.loads(rest)
        except ValueError:
            value = rest
        end = {">=": "min", "<=": "max"}.get(sign)
        known = read.get(name, {})
        if name in read and (end is None or not isinstance(known, dict) or end in known):
            raise InvalidInput.at(
                "where", f"{name!r} is given twice.", 'Join values: name={"any": ["a", "b"]}.'
            )
        read[name] = value if end is None else {**known, end: value}
    return read


def result_table(
    found: SearchResponse | SimilarVideosResponse, first: int | None = None, mark: str | None = None
) -> Table:
    """The results, best first; the video ``mark`` stands out."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", justify="right")
    table.add_column("score", justify="right")
    calibrated = any(result.confidence is not None for result in found.results)
    if calibrated:
        table.add_column("right", justify="right")
    table.add_column("task", no_wrap=True)
    table.add_column("video", no_wrap=True)
    timed = any(result.moments for result in found.results[:first])
    if timed:
        table.add_column("best moment", no_wrap=True)
    table.add_column("caption")
    for result in found.results[:first]:
        table.add_row(
            str(result.rank),
            f"{result.score:.3f}",
            *([f"{result.confidence or 0:.0%}"] if calibrated else []),
            result.task,
            result.video_id,
            *([_moment(result)] if timed else []),
            escape(result.captions[0]) if result.captions else "",
            style="bold green" if result.video_id == mark else "",
        )
    return table


def _moment(result: SearchResult) -> str:
    """``0:40–1:00``, or nothing for a video without moments."""
    if not result.moments:
        return ""
    ends = (divmod(int(seconds), 60) for seconds in (result.moments[0].start, result.moments[0].end))
    return "–".join(f"{minutes}:{seconds:02}" for minutes, seconds in ends)
