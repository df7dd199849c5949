"""Put the figures of ``bench queries`` into a file of ``benchmarks/results``.

    python -m benchmarks.reporting.publish_queries FOLDER [FOLDER …] --to NAME

A FOLDER is what ``--out`` named. The file keeps its texts, rows and columns. Its ``tables`` select the figures of one
folder; or its ``measures`` are the kind and measure of each row, and each folder is a column with the means of its
``methods``. ``render_results`` then shows the new figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting.render_results import RESULTS, load, query_figures

_KEYS = ("row", "kind", "measure", "gallery", "group", "queries")


def publish(content: Mapping[str, Any], reports: Sequence[Mapping[str, Any]], commit: str) -> dict[str, Any]:
    """Replace the figures in the content of a file by those of reports, one per column."""
    if "measures" in content:
        figures = [query_figures(report) for report in reports]
        means = [
            [_means(one, content["methods"], kind, measure) for one in figures]
            for kind, measure in content["measures"]
        ]
        rows = [[row[0], *cells] for row, cells in zip(content["rows"], means, strict=True)]
        return {**content, "commit": commit, "rows": rows}
    (report,) = reports
    shown = {tuple(key) for columns in content["tables"] for key in columns.values()}
    methods = {figure["row"] for figure in content["figures"]}
    published = [
        {key: figure[key] for key in _KEYS}
        | {key: _rounded(figure[key]) for key in ("value", "difference", "over_queries") if key in figure}
        for figure in (*report["figures"], *map(_area, report["curves"]))
        if figure["row"] in methods and tuple(figure[key] for key in _KEYS[1:5]) in shown
    ]
    return {**content, "commit": commit, "figures": published}


def _area(curve: Mapping[str, Any]) -> dict[str, Any]:
    """Make a figure, in percent, of the area under a curve."""
    key = {"row": curve["row"], "kind": curve["present"], "measure": "area", "gallery": "all", "group": ""}
    return {**key, "queries": 0, "value": [100 * number for number in curve["area"]], "difference": None}


def _means(figures: Mapping[tuple[str, ...], Any], methods: Sequence[str], kind: str, measure: str) -> str:
    return ", ".join(f"{figures[row, kind, measure, 'all', '']['over_queries'][0]:.1f}" for row in methods)


def _rounded(numbers: Sequence[float] | None) -> list[float] | None:
    return None if numbers is None else [round(number, 3) for number in numbers]


def format_file(content: Mapping[str, Any]) -> str:
    """Format the content of a file as JSON, with one line for each figure."""
    rest = {key: value for key, value in content.items() if key != "figures"}
    text = json.dumps(rest, indent=2, ensure_ascii=False)
    if "figures" in content:
        lines = ",\n".join("    " + json.dumps(figure, ensure_ascii=False) for figure in content["figures"])
        text = f'{text[:-2]},\n  "figures": [\n{lines}\n  ]\n}}'
    return text + "\n"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reporting.publish_queries")
    parser.add_argument("folders", nargs="+", type=Path, help="results of bench queries")
    parser.add_argument("--to", required=True, metavar="NAME", help="name of a file in benchmarks/results")
    options = parser.parse_args()
    files = (folder / "results.json" for folder in options.folders)
    reports = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    content = publish(load(options.to), reports, commit)
    (RESULTS / f"{options.to}.json").write_text(format_file(content), encoding="utf-8")


if __name__ == "__main__":
    main()
