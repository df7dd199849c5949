"""Markdown tables, and the format of figures of several runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["format_mean", "markdown_table"]


def format_mean(values: Sequence[float | None], style: str = "{:.2f}") -> str:
    """Mean ± sample standard deviation; the mean alone for a single run, a dash without any value."""
    present = [value for value in values if value is not None]
    if not present:
        return "–"
    mean = style.format(statistics.fmean(present))
    return mean if len(present) == 1 else f"{mean} ± {style.format(statistics.stdev(present))}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, with a final line break."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
