"""Report ``bench queries``: words, whole captions and unknown texts, for the product and its rivals."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.clips.clip_runs import Interval, difference_interval
from benchmarks.queries.query_comparison import KEPT_KINDS, UNKNOWN_KINDS, QueryResults
from benchmarks.queries.query_kinds import CAPTION_KINDS, RETYPED_KINDS, TIMED_KINDS
from benchmarks.queries.query_rivals import CHANCE, CONVEX, PRODUCT, ROWS, Outcome
from benchmarks.reporting.markdown_tables import format_interval, markdown_table, write_report


class Column(NamedTuple):
    """A measure of one kind of query; ``group`` limits it to a folder's videos."""

    kind: str
    measure: str
    gallery: str = "all"
    group: str = ""


@dataclass(frozen=True)
class Figure:
    """A measure in a row: its number of distinct queries, and means with their intervals."""

    queries: int
    value: Interval  # over the domains; queries that fit several domains count as one more domain
    difference: Interval | None  # to the product; None for the product, and if it has no value
    over_queries: Interval
    difference_over_queries: Interval | None


Figures = dict[tuple[str, Column], Figure]
Floats = npt.NDArray[np.float64]
Values = dict[str, dict[str, float]]  # each query's mean over the seeds, by domain


def _tables(results: QueryResults) -> dict[str, list[Column]]:
    """List the columns of each table, by title."""
    groups = sorted({outcome.query.group for outcome in results.outcomes} - {""})
    tables = {
        "Words and pairs of words that captions contain": [
            Column(kind, measure) for kind in ("words", "pairs") for measure in ("P@min(10, R)", "matches")
        ],
        "Captions as people retype them, all domains": [
            Column(kind, measure) for kind in RETYPED_KINDS for measure in ("R@1", "R@10", "matches")
        ],
        "Whole captions, all domains": [Column(kind, f"R@{k}") for kind in CAPTION_KINDS for k in (1, 10)],
    }
    for group in groups:
        title = f"Whole captions, own domain{f', {group}' * (len(groups) > 1)}"
        tables[title] = [Column(kind, f"R@{k}", "own", group) for kind in CAPTION_KINDS for k in (1, 10)]
    if {outcome.query.kind for outcome in results.outcomes} & TIMED_KINDS.keys():
        tables["Words that were heard or read in the video, all domains"] = [
            Column(kind, measure) for kind in TIMED_KINDS for measure in ("R@1", "R@10", "matches")
        ]
    tables["Answers that say that a video matches, or that none does"] = [
        *(Column(kind, "matches") for kind in (*CAPTION_KINDS, *KEPT_KINDS)),
        *(Column(kind, "refused") for kind in UNKNOWN_KINDS),
    ]
    return tables


def compute_figures(results: QueryResults) -> Figures:
    """Compute every measure in the tables that a row has."""
    outcomes: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in results.outcomes:
        outcomes[outcome.row, outcome.query.kind, outcome.gallery].append(outcome)
    figures: Figures = {}
    for column in (column for columns in _tables(results).values() for column in columns):
        values = {row: _values(outcomes[row, column.kind, column.gallery], column) for row in ROWS}
        for row, measured in values.items():
            if measured:
                product = values[PRODUCT] if row != PRODUCT else {}
                compared = {  # a release that is not calibrated does not say what matches
                    domain: shared
                    for domain, queries in measured.items()
                    if (shared := {q: queries[q] for q in queries if q in product.get(domain, ())})
                }
                over_domains, over_queries = (
                    (
                        _interval(measured, pooled=pooled),
                        _interval(compared, product, pooled=pooled) if compared else None,
                    )
                    for pooled in (False, True)
                )
                figures[row, column] = Figure(sum(map(len, measured.values())), *over_domains, *over_queries)
    return figures


def _values(outcomes: Iterable[Outcome], column: Column) -> Values:
    by_domain: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, _, query, values in outcomes:
        if column.group in ("", query.group) and column.measure in values:
            by_domain[query.domain or ""][f"{query.text} {sorted(query.right)}"].append(
                values[column.measure]
            )
    return {
        domain: {query: statistics.fmean(seeds) for query, seeds in sorted(queries.items())}
        for domain, queries in sorted(by_domain.items())
    }


def _interval(first: Values, second: Values | None = None, *, pooled: bool) -> Interval:
    """Average the first values, or their difference to the second, over domains or pooled, with an interval."""
    return difference_interval(
        [list(queries.values()) for queries in first.values()],
        [
            [0.0 if second is None else second[domain][query] for query in queries]
            for domain, queries in first.items()
        ],
        pooled=pooled,
    )


def compute_curves(results: QueryResults) -> list[dict[str, Any]]:
    """Compute the area under the curve of confidence, for whole captions against those of domains left out."""
    curves = []
    for row in ROWS:
        if row in (CONVEX, CHANCE):  # these score relative to other videos
            continue
        present, hidden, absent = (
            _confidences(results, row, kind) for kind in (*KEPT_KINDS, UNKNOWN_KINDS[-1])
        )
        for kind, scores in zip(KEPT_KINDS, (present, hidden), strict=True):
            if len(scores) and len(absent):
                curves.append({"row": row, "present": kind, "area": _area(scores, absent)})
    return curves


def _confidences(results: QueryResults, row: str, kind: str) -> Floats:
    outcomes = [outcome for outcome in results.outcomes if (outcome.row, outcome.query.kind) == (row, kind)]
    by_domain = _values(outcomes, Column(kind, "confidence"))
    return np.array([mean for part in by_domain.values() for mean in part.values()])


def _area(present: Floats, absent: Floats) -> Interval:
    """Compute the area under a curve with its 95 % interval (DeLong, DeLong and Clarke-Pearson, 1988)."""
    above, below = (
        (np.searchsorted(np.sort(b), a) + np.searchsorted(np.sort(b), a, "right")) / (2 * len(b))
        for a, b in ((present, absent), (absent, present))
    )
    area = float(above.mean())
    error = 1.96 * float(np.sqrt(above.var() / len(above) + below.var() / len(below)))
    return area, max(0.0, area - error), min(1.0, area + error)


def query_tables(results: QueryResults, figures: Figures) -> str:
    """Format Markdown tables for all kinds of queries."""
    names = "with file names and metadata" if results.names else "under neutral names, without metadata"
    parts = [
        f"One library with {len(results.videos)} domains and {sum(results.videos.values())} videos {names}, of which "
        f"{results.hidden} are hidden (stored without captions); all are in the gallery. {results.seeds} seeds. "
        "Percent: mean over domains with the 95 % interval of a bootstrap over queries, each a mean over the seeds "
        "that drew it / mean over queries. ▲: better than the product, △: better, and the interval of the paired "
        "difference includes zero.\n"
    ]
    if not results.names:
        parts.append(
            "BM25 finds no hidden video because names are left out: these videos have no text at all.\n"
        )
    for title, columns in _tables(results).items():
        present = [column for column in columns if (PRODUCT, column) in figures]
        if present:
            parts.append(f"**{title}**\n\n{_table(figures, present)}")
    if curves := compute_curves(results):
        areas: dict[str, list[str]] = defaultdict(list)
        for curve in curves:
            areas[curve["row"]].append(format_interval(curve["area"], decimals=3))
        table = markdown_table(["", *KEPT_KINDS], [[row, *cells] for row, cells in areas.items()])
        parts.append(
            "**Area under the curve of the answer that no video matches: confidence, or a rival's best score, for "
            f"these captions against {UNKNOWN_KINDS[-1]}**\n\n{table}"
        )
    sizes = ", ".join(f"{name} {count}" for name, count in results.videos.items())
    parts.append(
        f"Videos: {sizes}. Ridge: {'; '.join(dict.fromkeys(results.ridge))}. Fitted weights of BM25 in the convex "
        f"combination: {', '.join(f'{a:g} and {b:g}' for a, b in results.weights)}.\n"
    )
    return "\n".join(parts)


def _table(figures: Figures, columns: Sequence[Column]) -> str:
    rows = [row for row in ROWS if any((row, column) in figures for column in columns)]
    lines = [
        [
            f"{column.kind}: {column.measure}",
            *(_cell(figures.get((row, column))) for row in rows),
            str(figures[PRODUCT, column].queries),
        ]
        for column in columns
    ]
    return markdown_table(["", *rows, "queries"], lines)


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{format_interval(figure.value, figure.difference)} / {figure.over_queries[0]:.1f}"


def write_query_report(folder: Path, results: QueryResults, command: str, backbone: str) -> str:
    """Write ``table.md`` and ``results.json``, and return the tables."""
    figures = compute_figures(results)
    table = query_tables(results, figures)
    summary = {
        "command": command,
        "backbone": backbone,
        **{name: value for name, value in vars(results).items() if name != "outcomes"},
        "curves": compute_curves(results),
        "figures": [
            {"row": row, **column._asdict(), **vars(figure)} for (row, column), figure in figures.items()
        ],
        "answers": [  # the product's, to see which queries it misses
            {"kind": query.kind, "text": query.text, "gallery": gallery, **values}
            for row, gallery, query, values in results.outcomes
            if row == PRODUCT
        ],
    }
    return write_report(folder, table, summary)
