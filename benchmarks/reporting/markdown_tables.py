"""Format Markdown tables of means and intervals, and write reports."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def format_mean(values: Sequence[float | None], style: str = "{:.2f}") -> str:
    """Format a mean ± sample standard deviation; the mean alone for one run, a dash without a value."""
    present = [value for value in values if value is not None]
    if not present:
        return "–"
    mean = style.format(statistics.fmean(present))
    return mean if len(present) == 1 else f"{mean} ± {style.format(statistics.stdev(present))}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table, ending with a line break."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def format_interval(
    value: Sequence[float], difference: Sequence[float] | None = None, decimals: int = 1
) -> str:
    """Format a mean with its interval; ▲: the interval of its difference to the product is above zero, △: only the
    mean.
    """
    mean, low, high = (f"{number:.{decimals}f}" for number in value)
    sign = ""
    if difference is not None and difference[0] > 0:
        sign = " ▲" if difference[1] > 0 else " △"
    return f"{mean} ({low} to {high}){sign}"


def write_report(folder: Path, table: str, summary: Mapping[str, Any]) -> str:
    """Write ``table.md``, with the summary's command, and ``results.json`` to a folder, and return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(f"    {summary['command']}\n\n{table}", encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(summary, allow_nan=False) + "\n", encoding="utf-8")
    return table


def write_json(file: Path, facts: object) -> None:
    """Print facts as JSON, and write them to a file in a folder that need not exist."""
    report = json.dumps(facts, indent=1)
    sys.stdout.write(report + "\n")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(report + "\n", encoding="utf-8")
