"""Report of ``bench worlds``: recall in every gallery, forgetting, and differences to joint training."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.clips.clip_results import ClipRun
from benchmarks.clips.paired_bootstrap import difference_interval
from benchmarks.learning.run_results import to_json_value
from benchmarks.reporting.markdown_tables import format_mean, markdown_table
from benchmarks.worlds.world_comparison import WorldRun
from models.forgetting_measures import backward_forgetting

__all__ = ["world_tables", "write_world_report"]

_GALLERIES = {
    "local": "own shard",
    "global": "all shards",
    "global_raw": "raw cosines",
    "local_all": "own shard, all videos",
    "global_all": "all shards, all videos",
}
_DEPTHS = (1, 5, 10)


def world_tables(runs: Sequence[WorldRun]) -> str:
    """Markdown tables of all runs.

    Args:
        runs: Runs of all variants on the same worlds and orders.
    """
    worlds = sorted({run.world for run in runs})
    first = runs[0].run
    queries = sum(map(len, first.ranks["local"].values()))
    intro = (
        f"{len(worlds)} worlds ({', '.join(map(str, worlds))}) of {len(first.order)} domains with {queries} queries; "
        f"orders {', '.join(map(str, sorted({run.run.seed for run in runs})))}. R@1 / R@5 / R@10 in percent, means "
        "over worlds and orders.\n"
    )
    header = ["method", *_GALLERIES.values()]
    rows = [
        [label, *(_recall_cell(part, gallery) for gallery in _GALLERIES)] for label, part in _grouped(runs)
    ]
    parts = [intro, markdown_table(header, rows), _measure_table(runs)]
    joint = [(label, part) for label, part in _grouped(runs) if part[0].is_joint]
    if joint:
        parts.append(_difference_table(runs, *joint[0]))
    return "\n".join(parts)


def write_world_report(folder: Path, runs: Sequence[WorldRun], command: str, backbone: str) -> str:
    """Write ``table.md`` and ``results.json``, and return the tables.

    Args:
        folder: Folder of the results; created if necessary.
        runs: Runs of all variants.
        command: Command line of the runs.
        backbone: Name of the backbone.
    """
    table = world_tables(runs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(f"    {command}\n\n{table}", encoding="utf-8")
    results = {"command": command, "backbone": backbone, "runs": to_json_value(runs)}
    (folder / "results.json").write_text(json.dumps(results, allow_nan=False) + "\n", encoding="utf-8")
    return table


def _grouped(runs: Sequence[WorldRun]) -> list[tuple[str, list[WorldRun]]]:
    """Runs by label, in the order of their first runs."""
    labels = dict.fromkeys(run.run.label for run in runs)
    return [(label, [run for run in runs if run.run.label == label]) for label in labels]


def _recall_cell(runs: Sequence[WorldRun], gallery: str) -> str:
    return " / ".join(
        f"{statistics.fmean(run.run.query_recall(gallery, k) for run in runs):.1f}" for k in _DEPTHS
    )


def _measure_table(runs: Sequence[WorldRun]) -> str:
    measures: dict[str, Callable[[ClipRun], float | None]] = {
        "routing@1": lambda run: run.routing(),
        "R@1, all shards": lambda run: run.query_recall("global", 1),
        "R@10, all shards": lambda run: run.query_recall("global", 10),
        "raw / all shards, R@1": lambda run: _ratio(run, 1),
        "raw / all shards, R@10": lambda run: _ratio(run, 10),
        "BWF local": lambda run: run.forgetting("local"),
        "BWF global": lambda run: run.forgetting("global"),
        "growth of the gallery": lambda run: backward_forgetting(run.growth) if run.growth else None,
        "s per domain": lambda run: run.seconds_per_domain,
    }
    rows = [
        [
            label,
            *(format_mean([measure(run.run) for run in part]) for measure in measures.values()),
            f"{part[0].run.stored:,}",
            str(len(part)),
        ]
        for label, part in _grouped(runs)
    ]
    return markdown_table(["mean ± sd over runs", *measures, "stored", "runs"], rows)


def _ratio(run: ClipRun, k: int) -> float | None:
    routed = run.query_recall("global", k)
    return run.query_recall("global_raw", k) / routed if routed else None


def _difference_table(runs: Sequence[WorldRun], reference: str, joint: Sequence[WorldRun]) -> str:
    """Differences to joint training with the 95 % interval of a paired bootstrap over queries."""
    galleries = ("local", "global", "global_raw")
    depths = (1, 10)
    rows = []
    for label, part in _grouped(runs):
        if label == reference:
            continue
        cells = []
        for gallery in galleries:
            for k in depths:
                own, other = _query_means(part, gallery, k), _query_means(joint, gallery, k)
                difference, low, high = difference_interval(own, other)
                cells.append(f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]")
        rows.append([label, *cells])
    header = [f"{_GALLERIES[gallery]}, R@{k}" for gallery in galleries for k in depths]
    return markdown_table([f"difference to {reference}", *header], rows)


def _query_means(runs: Sequence[WorldRun], gallery: str, k: int) -> list[list[float]]:
    """Mean over the orders of each query's hit, by world and domain in ascending order."""
    values = []
    for world in sorted({run.world for run in runs}):
        hits = [run.run.hits(gallery, k) for run in runs if run.world == world]
        for name in sorted(hits[0]):
            values.append(
                [statistics.fmean(same) for same in zip(*(part[name] for part in hits), strict=True)]
            )
    return values
