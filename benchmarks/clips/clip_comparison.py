"""Compare methods on a sequence of domains: with the ridge rivals on the same frames, and with fewer captions.

The reports of ``bench clips`` and ``bench run`` have recall, differences and costs; that of ``--counts``, recall by
captions.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.clips.clip_runs import ClipRun, difference_interval, domain_order, run_variant
from benchmarks.clips.ridge_rival import (
    FEATURE_BACKBONE,
    DomainFeatures,
    RidgeSettings,
    extract_features,
    run_ridge,
    select_settings,
)
from benchmarks.data.source_tasks import Progress, SourceTask, prepare_source_tasks
from benchmarks.learning.protocol import MethodVariant
from benchmarks.learning.sequential_learning import remember_outputs
from benchmarks.reporting.markdown_tables import format_mean, markdown_table, write_report
from benchmarks.rivals import METHODS, configure
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.routing import DEFAULT_PRIOR
from trainer.task_data import TaskData

Report = Callable[[str], None]


def compare_on_clips(
    domains: Sequence[SourceTask],
    variants: Sequence[MethodVariant],
    *,
    backbone: str,
    seeds: int,
    cache: Path,
    frames: int | None = None,
    ridges: bool = True,
    shuffled: bool = True,
    device: str = "cpu",
    workers: int = 1,
    progress: Progress = lambda done, total: None,
    report: Report = lambda line: None,
) -> Iterator[tuple[list[ClipRun], list[ClipRun]]]:
    """Run the methods, one seed after the other, and the rivals; yields their runs so far after each run.

    The rivals read the same frames as the methods, at the size that their image features need. Each rival is routed by
    words, and also by the first variant's routing evidence, once per run of that variant. A frozen network computes
    each video's tokens once for all runs, so training times do not include it.
    """
    for variant in variants:  # validate settings before decoding videos
        configure(variant.method, backbone, variant.settings)
    spec = frame_spec(backbone, frames)
    tasks = prepare_source_tasks(domains, spec, cache, workers=workers, progress=progress)
    features: list[DomainFeatures] = []
    chosen: dict[str, RidgeSettings] = {}
    if ridges:
        rival_spec = FrameSpec(spec.frames, frame_spec(FEATURE_BACKBONE, spec.frames).size)
        rival_tasks = prepare_source_tasks(domains, rival_spec, cache, workers=workers, progress=progress)
        features = extract_features(
            load_backbone(FEATURE_BACKBONE, spec.frames).to(device),
            rival_tasks,
            lambda line: report(f"ridge per domain: {line}"),
        )
        chosen = {
            name: select_settings(features, joint=joint, prior=DEFAULT_PRIOR)
            for name, joint in _RIDGES.items()
        }
    loaded = _load(backbone, spec, device, cache, report)
    for name, settings in chosen.items():
        report(f"{name}: {settings}")
    methods: list[ClipRun] = []
    rivals: list[ClipRun] = []
    for seed in range(seeds):
        for variant in variants:
            if seed and not METHODS[variant.method].is_trainable:
                continue
            order = domain_order(tasks, seed) if shuffled else tasks
            run = run_variant(
                variant, loaded, order, seed=seed, report=_prefixed(report, f"{variant.label}, seed {seed}")
            )
            methods.append(run)
            if variant is variants[0]:
                rivals += [
                    run_ridge(
                        features,
                        settings,
                        joint=_RIDGES[name],
                        prior=DEFAULT_PRIOR,
                        label=f"{name}, routed {'by words' if routing is None else f'as {routing.label}'}",
                        routing=routing,
                    )
                    for routing in ((run,) if seed else (None, run))
                    for name, settings in chosen.items()
                ]
            yield methods, rivals


_RIDGES = {"ridge per domain": False, "ridge over all domains": True}  # name → whether it is joint


def _load(name: str, spec: FrameSpec, device: str, cache: Path, report: Report) -> Backbone:
    backbone = load_backbone(name, spec.frames).to(device)
    report(f"{name} runs in {backbone.engine}")
    remember_outputs(backbone, cache)
    return backbone


def _prefixed(report: Report, name: str) -> Report:
    return lambda line: report(f"{name}: {line}")


@dataclass(frozen=True)
class CurvePoint:
    """The runs, one per seed, with captions for a limited number of training clips per domain; None: all."""

    limit: int | None
    clips: int
    runs: tuple[ClipRun, ...]


def keep_captions(task: TaskData, limit: int | None, seed: int) -> TaskData:
    """Remove the captions from all but ``limit`` training clips.

    Clips are selected by a hash of seed and ID, so a larger limit keeps all captions of a smaller one.
    """
    captioned = [clip.id for clip in task.train if clip.captions]
    ranked = sorted(captioned, key=lambda clip: hashlib.sha256(f"{seed} {clip}".encode()).digest())
    removed = set() if limit is None else set(ranked[limit:])
    return replace(task, clips=tuple(replace(c, captions=()) if c.id in removed else c for c in task.clips))


def measure_caption_curve(
    domains: Sequence[SourceTask],
    variant: MethodVariant,
    limits: Sequence[int],
    *,
    backbone: str,
    seeds: int,
    cache: Path,
    device: str = "cpu",
    workers: int = 1,
    progress: Progress = lambda done, total: None,
    report: Report = lambda line: None,
) -> list[CurvePoint]:
    """Learn the domains with fewer captions, and with all.

    Held-out clips and their queries are the same for all points. A seed selects the captioned clips and the order of
    the domains. Limits that no domain exceeds are left out.
    """
    configure(variant.method, backbone, variant.settings)
    spec = frame_spec(backbone, None)
    tasks = prepare_source_tasks(domains, spec, cache, workers=workers, progress=progress)
    loaded = _load(backbone, spec, device, cache, report)
    largest = max(_count_captioned([task]) for task in tasks)
    points: list[CurvePoint] = []
    for limit in (*sorted({limit for limit in limits if limit < largest}), None):
        runs, clips = [], 0
        for seed in range(seeds):
            limited = [keep_captions(task, limit, seed) for task in tasks]
            clips = _count_captioned(limited)
            name = f"{limit or 'all'} captioned clips, seed {seed}"
            order = domain_order(limited, seed)
            runs.append(run_variant(variant, loaded, order, seed=seed, report=_prefixed(report, name)))
        points.append(CurvePoint(limit, clips, tuple(runs)))
    return points


def _count_captioned(tasks: Sequence[TaskData]) -> int:
    return sum(bool(clip.captions) for task in tasks for clip in task.train)


# -- reports ----------------------------------------------------------------------------------------------------------

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
