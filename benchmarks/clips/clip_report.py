"""Report ``bench clips`` and ``bench run`` (recall, differences, costs) and ``--counts`` (recall by captions)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.clips.clip_comparison import CurvePoint
from benchmarks.clips.clip_runs import ClipRun, difference_interval
from benchmarks.reporting.markdown_tables import format_mean, markdown_table, write_report

_DEPTHS = (1, 5, 10)
_TITLES = {
    "local": "Own shard, held-out clips",
    "local_all": "Own shard, all clips",
    "global": "All shards with routing evidence, held-out clips of all domains",
    "global_raw": "All shards, raw cosines, held-out clips of all domains",
}
_COMPARED = {"local": "own shard", "global": "all shards"}
_COLUMNS = {f"{title} R@{k}": (gallery, k) for gallery, title in _COMPARED.items() for k in _DEPTHS}


def clip_tables(methods: Sequence[ClipRun], rivals: Sequence[ClipRun]) -> str:
    """Format Markdown tables of all runs of methods and rivals."""
    first = methods[0]
    queries = sum(map(len, first.ranks["local"].values()))
    parts = [
        f"{len(first.order)} domains, {sum(first.clips.values())} clips, {queries} queries (first caption of each test "
        "clip). R@k in percent: mean over domains (mean over queries), ± standard deviation over seeds.\n"
    ]
    for gallery, title in _TITLES.items():
        header = ["method", *(f"R@{k}" for k in _DEPTHS)]
        rows = [_recall_cells(runs, gallery) for runs in _grouped([*methods, *rivals])]
        parts.append(f"**{title}**\n\n{markdown_table(header, rows)}")
    if rivals:
        parts.append(
            "**Differences between methods and rivals** in points, means over domains, with the 95 % interval of a "
            "paired bootstrap over queries\n\n" + _difference_table(methods, rivals)
        )
        parts.append(
            "**Settings of the rivals**, selected on the training clips\n\n"
            + markdown_table(
                ["rival", "settings"], [[run.label, run.settings] for run, *_ in _grouped(rivals)]
            )
        )
    parts.append("**Routing, forgetting and costs**\n\n" + _cost_table([*methods, *rivals]))
    return "\n".join(parts)


def write_clip_report(
    folder: Path, methods: Sequence[ClipRun], rivals: Sequence[ClipRun], command: str, backbone: str
) -> str:
    """Write ``table.md`` and ``results.json``, and return the tables."""
    table = clip_tables(methods, rivals)
    summary = {"command": command, "backbone": backbone, "runs": list(map(_run_summary, [*methods, *rivals]))}
    return write_report(folder, table, summary)


def _run_summary(run: ClipRun) -> dict[str, Any]:
    figures = {
        gallery: {
            f"r{k}": {"domains": run.recall(gallery, k), "queries": run.query_recall(gallery, k)}
            for k in _DEPTHS
        }
        for gallery in _TITLES
    }
    costs = {"seconds_per_domain": run.seconds_per_domain, "seconds_per_100_clips": run.seconds_per_100_clips}
    measures = {"routing": run.routing(), "bwf": {name: run.forgetting(name) for name in ("local", "global")}}
    return asdict(run) | {"figures": figures} | measures | costs


def _grouped(runs: Sequence[ClipRun]) -> list[list[ClipRun]]:
    """Group the runs by label, in label order."""
    return [[run for run in runs if run.label == label] for label in dict.fromkeys(run.label for run in runs)]


def _recall_cells(runs: Sequence[ClipRun], gallery: str) -> list[str]:
    cells = [runs[0].label]
    for k in _DEPTHS:
        pooled = statistics.fmean(run.query_recall(gallery, k) for run in runs)
        cells.append(f"{format_mean([run.recall(gallery, k) for run in runs], '{:.1f}')} ({pooled:.1f})")
    return cells


def _difference_table(methods: Sequence[ClipRun], rivals: Sequence[ClipRun]) -> str:
    rows = []
    for method in _grouped(methods):
        for rival in _grouped(rivals):
            cells = [method[0].label, rival[0].label]
            for column in _COLUMNS.values():
                means = _seed_means(method, *column), _seed_means(rival, *column)
                difference, low, high = difference_interval(*means)
                cells.append(f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]")
            rows.append(cells)
    return markdown_table(["method", "rival", *(title.replace(" R@", ", R@") for title in _COLUMNS)], rows)


def _seed_means(runs: Sequence[ClipRun], gallery: str, k: int) -> list[list[float]]:
    """Average each query's hit over the seeds, by domain in order of name."""
    hits = [run.hits(gallery, k) for run in runs]
    return [
        [statistics.fmean(values) for values in zip(*(part[name] for part in hits), strict=True)]
        for name in sorted(runs[0].order)
    ]


def _cost_table(runs: Sequence[ClipRun]) -> str:
    rows = [
        [
            part[0].label,
            format_mean([run.routing() for run in part], "{:.1f}"),
            *(format_mean([run.forgetting(gallery) for run in part]) for gallery in ("local", "global")),
            *(
                format_mean([sum(run.seconds.get(phase, ())) / len(run.order) for run in part], "{:.1f}")
                for phase in ("training", "indexing", "evaluation")
            ),
            format_mean([run.seconds_per_domain for run in part], "{:.1f}"),
            format_mean([run.seconds_per_100_clips for run in part], "{:.1f}"),
            format_mean([run.peak for run in part], "{:,.0f}"),
            str(len(part)),
        ]
        for part in _grouped(runs)
    ]
    seconds = ["training s", "indexing s", "evaluation s", "s per domain", "s per 100 clips"]
    measures = ["routing@1", "BWF local", "BWF global"]
    return markdown_table(["method", *measures, *seconds, "peak MiB", "runs"], rows)


def caption_table(points: Sequence[CurvePoint]) -> str:
    """Format a Markdown table with a row per number of captioned clips; the last one has all captions."""
    run = points[-1].runs[0]
    queries = sum(map(len, run.ranks["local"].values()))
    header = ["captioned clips per domain", "captioned clips", *_COLUMNS]
    rows = [
        [
            "all" if point.limit is None else f"at most {point.limit}",
            str(point.clips),
            *(
                format_mean([run.recall(*column) for run in point.runs], "{:.1f}")
                for column in _COLUMNS.values()
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
    folder: Path, points: list[CurvePoint], command: str, method: str, backbone: str
) -> str:
    """Write ``table.md`` and ``results.json``, and return the table."""
    table = caption_table(points)
    figures = [
        {
            "limit": point.limit,
            "captioned": point.clips,
            "recall": {
                gallery: {f"r{k}": [run.recall(gallery, k) for run in point.runs] for k in _DEPTHS}
                for gallery in _COMPARED
            },
        }
        for point in points
    ]
    summary = {"command": command, "method": method, "backbone": backbone, "points": figures}
    return write_report(folder, table, summary)
