"""Render the tables in RESULTS.md and the README from the files in ``benchmarks/results``.

    python -m benchmarks.reporting.render_results

``<!-- table: NAME -->`` begins the table from ``NAME.json``, and ``<!-- end -->`` ends it. A file has:

- ``command``, ``commit`` (that reported the figures), ``hardware``, ``seeds`` and ``interval``,
- ``columns`` and ``rows``. A cell is a text, a number, null, [mean, standard deviation], or [value, low, high];
  ``decimals`` (1 by default) is the precision of the numbers,
- or, instead, the report of ``bench queries``, with ``tables``: the kind, measure, gallery and group of each column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting.markdown_tables import format_interval, markdown_table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "benchmarks" / "RESULTS.md", ROOT / "README.md")
OVERVIEW = "overview"  # the README's table, from several files

_MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SHOWN_SEARCHES = (("words", "P@min(10, R)"), ("other words", "R@1"), ("hidden", "R@10"))  # by the README
_RIDGE = "ridge over all domains, routed as `analytic`"


def load(name: str) -> dict[str, Any]:
    """Read the file of a table."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def render(document: str) -> str:
    """Replace every marked table in a document with the one from its file."""
    return _MARKED.sub(
        lambda match: (
            match[1] + (_overview() if match[2] == OVERVIEW else _block(load(match[2])) + " ") + match[3]
        ),
        document,
    )


def _block(content: Mapping[str, Any]) -> str:
    """Format the tables, and the line that says how the figures were measured."""
    parts = [
        ", ".join(f"`{command}`" for command in content["command"]),
        *(content[key] for key in ("seeds", "interval", "hardware")),
        f"commit {content['commit']}",
    ]
    return "\n".join(_tables(content)) + f"\n{'; '.join(part for part in parts if part)}."


def _tables(content: Mapping[str, Any]) -> Iterator[str]:
    decimals = content.get("decimals", 1)
    if "rows" in content:
        yield markdown_table(
            content["columns"], [[_cell(value, decimals) for value in row] for row in content["rows"]]
        )
        return
    figures = query_figures(content)
    for columns in content["tables"]:
        keys = [tuple(key) for key in columns.values()]
        rows = dict.fromkeys(row for row, *key in figures if tuple(key) in keys)
        cells = [["", *columns]]
        cells += [[row, *(_query_cell(figures.get((row, *key)), decimals) for key in keys)] for row in rows]
        if content.get("is_transposed"):
            cells = [list(column) for column in zip(*cells, strict=True)]
        yield markdown_table(cells[0], cells[1:])


def query_figures(content: Mapping[str, Any]) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Index the figures of ``bench queries`` by row, kind, measure, gallery and group."""
    keys = ("row", "kind", "measure", "gallery", "group")
    return {tuple(figure[key] for key in keys): figure for figure in content["figures"]}


def _query_cell(figure: Mapping[str, Any] | None, decimals: int) -> str:
    if figure is None:
        return "–"
    over_domains = format_interval(figure["value"], figure["difference"], decimals)
    return over_domains + "".join(f" / {mean:.{decimals}f}" for mean in figure.get("over_queries", ())[:1])


def _cell(value: Any, decimals: int) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "–"
    if isinstance(value, list):
        numbers = [_number(number, decimals) for number in value]
        return " ± ".join(numbers) if len(value) == 2 else f"{numbers[0]} ({numbers[1]} to {numbers[2]})"
    return _number(value, decimals)


def _number(value: float, decimals: int) -> str:
    return (f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}").replace("-", "−")


def _overview() -> str:
    """Format the README's table: searches of one library, and held-out clips."""
    searches, ridges = query_figures(load("retyped")), load("ridge")
    column = ridges["columns"].index("all domains R@1")
    held_out = {(row[0], row[1]): row[column] for row in ridges["rows"]}
    held_out |= {(clips, "chance"): share for clips, share in ridges["chance"].items()}
    rows = []
    for name, row, method in (
        ("chance, clips without captions first", "chance, uncaptioned first", "chance"),
        ("frozen towers, nothing learned", "zero-shot", "zero-shot"),
        ("full-text search over captions (BM25)", "BM25", None),
        (
            "BM25 and Cinestrata's visual score, one fitted weight",
            "convex combination of BM25 and visual",
            None,
        ),
        ("one ridge regression over all domains, from the same image tower", "joint ridge", _RIDGE),
        ("the same, with Cinestrata's evidence of words", "joint ridge, words as the product", None),
        ("**Cinestrata**", "product as served", "`analytic`"),
    ):
        means = [searches[row, *measure, "all", ""]["over_queries"][0] for measure in _SHOWN_SEARCHES]
        first = _list([held_out.get((clips, method)) for clips in ("photos", "videos")])
        rows.append([name, *(_cell(mean, 1) for mean in means), first])
    header = [
        "",
        "videos with a word in a caption",
        "caption, 30 % of its words replaced, R@1",
        "clip without captions by its caption, R@10",
        "held-out clips of all domains, R@1: photos, videos",
    ]
    return markdown_table(header, rows)


def _list(values: Sequence[float | None]) -> str:
    return "–" if None in values else ", ".join(_cell(value, 1) for value in values)


def main() -> None:
    """Write the tables into the documents."""
    for path in DOCUMENTS:
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
