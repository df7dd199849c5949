"""Report of ``bench captions``: recall against the number of captioned clips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clips.caption_curve import CurvePoint
from benchmarks.reporting.markdown_tables import format_mean, markdown_table

__all__ = ["caption_table", "write_caption_report"]

_DEPTHS = (1, 5, 10)
_GALLERIES = {"local": "own shard", "global": "all shards"}


def caption_table(points: Sequence[CurvePoint]) -> str:
    """Markdown table with a row per number of captioned clips.

    Args:
        points: Points of the curve; the last one has all captions.
    """
    run = points[-1].runs[0]
    queries = sum(map(len, run.ranks["local"].values()))
    header = [
        "captioned clips per domain",
        "captioned clips",
        *(f"{title} R@{k}" for title in _GALLERIES.values() for k in _DEPTHS),
    ]
    rows = [
        [
            "all" if point.limit is None else f"at most {point.limit}",
            str(point.clips),
            *(
                format_mean([run.recall(gallery, k) for run in point.runs], "{:.1f}")
                for gallery in _GALLERIES
                for k in _DEPTHS
            ),
        ]
        for point in points
    ]
    return (
        f"{len(run.order)} domains, {sum(run.clips.values())} clips, {queries} queries (first caption of each test "
        f"clip), searched among the held-out clips. R@k in percent: mean over domains, ± standard deviation over "
        f"seeds of the selected clips and of the order; {len(points[-1].runs)} seeds.\n\n{markdown_table(header, rows)}"
    )


def write_caption_report(
    folder: Path, points: Sequence[CurvePoint], command: str, method: str, backbone: str
) -> str:
    """Write ``table.md`` and ``results.json``, and return the table.

    Args:
        folder: Folder of the results; created if necessary.
        points: Points of the curve.
        command: Command line of the runs.
        method: Label of the method.
        backbone: Name of its backbone.
    """
    table = caption_table(points)
    figures = [
        {
            "limit": point.limit,
            "captioned": point.clips,
            "recall": {
                gallery: {f"r{k}": [run.recall(gallery, k) for run in point.runs] for k in _DEPTHS}
                for gallery in _GALLERIES
            },
        }
        for point in points
    ]
    summary = {"command": command, "method": method, "backbone": backbone, "points": figures}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(f"    {command}\n\n{table}", encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(summary, allow_nan=False) + "\n", encoding="utf-8")
    return table
