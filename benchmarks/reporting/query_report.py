"""Report of ``bench queries``: words, whole captions and unknown texts, for the product and its rivals."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.clips.paired_bootstrap import Interval, difference_interval
from benchmarks.queries.query_comparison import PRODUCT, ROWS, UNKNOWN_KINDS, QueryResults
from benchmarks.queries.query_kinds import CAPTION_KINDS
from benchmarks.reporting.markdown_tables import markdown_table


class Column(NamedTuple):
    """A measure of a kind of queries; ``group`` limits it to the videos of a folder."""

    kind: str
    measure: str
    gallery: str = "all"
    group: str = ""


Values = dict[str, dict[str, float]]  # mean over the seeds of each query, by domain


def query_tables(results: QueryResults) -> str:
    """Markdown tables of all kinds of queries."""
    names = "with file names and metadata" if results.names else "under neutral names, without metadata"
    groups = sorted({outcome.group for outcome in results.outcomes} - {""})
    parts = [
        f"One library with {len(results.videos)} domains and {sum(results.videos.values())} videos {names}, of which "
        f"{results.hidden} are hidden (stored without captions); all are in the gallery. {results.seeds} seeds. "
        "Percent with the 95 % interval of a bootstrap over queries, each a mean over the seeds that drew it. ▲: "
        "better than the product, △: better, and the interval of the paired difference includes zero.\n",
    ]
    words = [
        Column(kind, measure)
        for kind in ("words", "pairs")
        for measure in ("P@min(10, R)", "matches", "routed")
    ]
    parts.append(f"**Words and pairs of words that captions contain**\n\n{_table(results, words)}")
    for title, gallery, group in [
        ("all domains", "all", ""),
        *(("own domain" + f", {group}" * (len(groups) > 1), "own", group) for group in groups),
    ]:
        columns = [Column(kind, f"R@{k}", gallery, group) for kind in CAPTION_KINDS for k in (1, 10)]
        parts.append(f"**Whole captions, {title}** (mean over domains)\n\n{_table(results, columns)}")
    answered = [Column(kind, "matches") for kind in CAPTION_KINDS]
    refused = [Column(kind, "refused") for kind in UNKNOWN_KINDS]
    parts.append(
        f"**Answers that say that a video matches, or that none does**\n\n{_table(results, answered + refused)}"
    )
    sizes = ", ".join(f"{name} {count}" for name, count in results.videos.items())
    parts.append(f"Videos: {sizes}. Ridge: {'; '.join(dict.fromkeys(results.ridge))}.\n")
    return "\n".join(parts)


def write_query_report(folder: Path, results: QueryResults, command: str, backbone: str) -> str:
    """Write ``table.md`` and ``results.json``, and return the tables.

    Args:
        folder: Folder of the results; created if necessary.
        command: Command line of the runs.
        backbone: Name of the backbone.
    """
    table = query_tables(results)
    summary = {
        "command": command,
        "backbone": backbone,
        "videos": results.videos,
        "hidden": results.hidden,
        "seeds": results.seeds,
        "names": results.names,
        "ridge": results.ridge,
        "figures": _figures(results),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(f"    {command}\n\n{table}", encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(summary, allow_nan=False) + "\n", encoding="utf-8")
    return table


def _figures(results: QueryResults) -> list[dict[str, Any]]:
    """Every measure of every row, with its interval and the difference to the product."""
    columns = dict.fromkeys(
        Column(outcome.kind, measure, outcome.gallery, group)
        for outcome in results.outcomes
        for measure in outcome.values
        for group in dict.fromkeys(("", outcome.group))
    )
    figures = []
    for column in columns:
        values = {row: _values(results, row, column) for row in ROWS}
        for row in ROWS:
            if values[row]:
                count = sum(map(len, values[row].values()))
                difference = None
                if row != PRODUCT and values[PRODUCT]:
                    difference = _interval(values[row], values[PRODUCT])
                figures.append(
                    {"row": row, **column._asdict(), "queries": count, "value": _interval(values[row])}
                    | {"difference_to_product": difference}
                )
    return figures


def _values(results: QueryResults, row: str, column: Column) -> Values:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in results.outcomes:
        is_searched = (outcome.row, outcome.kind, outcome.gallery) == (row, column.kind, column.gallery)
        if is_searched and column.group in ("", outcome.group) and column.measure in outcome.values:
            found[outcome.domain][outcome.query].append(outcome.values[column.measure])
    return {
        domain: {query: statistics.fmean(values) for query, values in sorted(queries.items())}
        for domain, queries in sorted(found.items())
    }


def _interval(first: Values, second: Values | None = None) -> Interval:
    """Mean of the first values, or of their difference to the second ones, with its interval."""
    return difference_interval(
        [list(queries.values()) for queries in first.values()],
        [
            [0.0 if second is None else second[domain][query] for query in queries]
            for domain, queries in first.items()
        ],
    )


def _table(results: QueryResults, columns: Sequence[Column]) -> str:
    by_row = {row: [_values(results, row, column) for column in columns] for row in ROWS}
    measured = [place for place, values in enumerate(by_row[PRODUCT]) if values]
    header = ["", *(f"{columns[place].kind}: {columns[place].measure}" for place in measured)]
    rows = []
    for row, values in by_row.items():
        if any(values[place] for place in measured):
            rows.append([row, *(_cell(values[place], by_row[PRODUCT][place], row) for place in measured)])
    counts = [str(sum(map(len, by_row[PRODUCT][place].values()))) for place in measured]
    return markdown_table(header, [*rows, ["queries", *counts]])


def _cell(values: Values, product: Values, row: str) -> str:
    if not values:
        return "–"
    mean, low, high = _interval(values)
    sign = ""
    if row != PRODUCT:
        difference, lowest, _ = _interval(values, product)
        sign = "" if difference <= 0 else " ▲" if lowest > 0 else " △"
    return f"{mean:.1f} ({low:.1f} to {high:.1f}){sign}"
