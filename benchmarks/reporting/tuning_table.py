"""Table of tuning trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.reporting.markdown_tables import markdown_table

__all__ = ["tuning_table"]


def tuning_table(log: Mapping[str, Any]) -> str:
    """Markdown table of a log: the score of each trial, and the best factor."""
    rows = []
    for label, method in log["methods"].items():
        scores = ["–" if trial["score"] is None else f"{trial['score']:.1f}" for trial in method["trials"]]
        rows.append([label, *scores, str(method["best"] or "–"), str(len(method["trials"]))])
    header = ["method", *(f"rates × {factor:g}" for factor in log["factors"]), "best factor", "trials"]
    return f"Score: {log['criterion']}.\n\n{markdown_table(header, rows)}"
