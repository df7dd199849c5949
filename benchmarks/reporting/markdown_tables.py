"""Tables in Markdown, and how figures of several runs are told."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["format_mean", "markdown_table"]


def format_mean(values: Sequence[float | None], style: str = "{:.2f}") -> str:
    """Mean ± sample standard deviation; the mean alone of a single run."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = style.format(statistics.fmean(known))
    return mean if len(known) == 1 else f"{mean} ± {style.format(statistics.stdev(known))}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """With a line break at its end."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
