"""``bench worlds``: run method variants on several worlds and domain orders, and format the tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.clips.clip_results import ClipRun
from benchmarks.clips.method_on_clips import domain_order, run_variant
from benchmarks.clips.paired_bootstrap import difference_interval
from benchmarks.data.protocol_sources import WorldSource
from benchmarks.errors import ProtocolError
from benchmarks.learning.output_memory import remember_outputs
from benchmarks.learning.protocol import MethodVariant, Protocol
from benchmarks.learning.run_results import to_json_value
from benchmarks.learning.task_preparation import Progress, prepare_tasks
from benchmarks.reporting.markdown_tables import format_mean, markdown_table
from benchmarks.rivals import METHODS, configure
from benchmarks.routing.routing_comparison import (
    TextEncoder,
    caption_evidence,
    profile_evidence,
    token_counts,
)
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.forgetting_measures import backward_forgetting
from trainer.evaluation.evaluation_task import Floats
from trainer.methods.analytic import AnalyticConfig
from trainer.task_data import TaskData

_GALLERIES = {
    "local": "own shard",
    "global": "all shards",
    "global_raw": "raw cosines",
    "local_all": "own shard, all videos",
    "global_all": "all shards, all videos",
}
_DEPTHS = (1, 5, 10)


@dataclass(frozen=True)
class WorldRun:
    """A run on one world.

    Attributes:
        world: Seed of the world.
        is_joint: Whether all domains were learned at once.
        run: Ranks and costs; its seed is that of the method and of the domain order.
    """

    world: int
    is_joint: bool
    run: ClipRun


def compare_worlds(
    protocol: Protocol,
    variants: Sequence[MethodVariant],
    *,
    backbone: str,
    worlds: int,
    orders: int,
    cache: Path,
    device: str = "cpu",
    progress: Progress = lambda done, total: None,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[WorldRun]:
    """Learn every world in every order with every variant, and rank all queries after the last domain.

    Joint training in closed form gets the routing evidence of the sequential method, which the union of all domains
    lacks, so that both differ only in their vectors.

    Args:
        protocol: Protocol whose source renders the world; more worlds have the next seeds.
        orders: Number of orders, each with another seed for the method; see
            :func:`~benchmarks.clips.method_on_clips.domain_order`. Without training, and for joint training in closed
            form, the order has no effect and there is only one.
        cache: Folder for frames and features.
        device: ``cpu`` or ``cuda``.
        progress: Called with the numbers of rendered videos and of videos to render.
        report: Called with one line per domain.

    Yields:
        Each run as it ends.

    Raises:
        ProtocolError: The source is not a video world.
        MethodError: Settings are invalid, or a method cannot use the backbone.
    """
    source = protocol.source
    if not isinstance(source, WorldSource):
        raise ProtocolError(f"{protocol.name} is not a video world; use `cinestrata bench run`")
    variants = [v.model_copy(update={"settings": protocol.settings_of(v)}) for v in variants]
    for variant in variants:  # validate settings before rendering videos
        configure(variant.method, backbone, variant.settings)
    loaded = load_backbone(backbone, protocol.frames).to(device)
    remember_outputs(loaded, cache)
    for seed in range(source.seed, source.seed + worlds):
        plan = protocol.model_copy(update={"source": source.model_copy(update={"seed": seed})})
        tasks = prepare_tasks(plan, frame_spec(backbone, protocol.frames), cache, progress=progress)
        for variant in variants:
            for order in range(orders if _depends_on_order(variant) else 1):
                name = f"world {seed}, {variant.label}, order {order}"
                run = run_variant(
                    variant,
                    loaded,
                    tasks,
                    seed=order,
                    evidence=_joint_evidence(variant, loaded, domain_order(tasks, order)),
                    report=lambda line, name=name: report(f"{name}: {line}"),  # type: ignore[misc]
                )
                yield WorldRun(seed, variant.is_joint, run)


def _depends_on_order(variant: MethodVariant) -> bool:
    """Check whether the order of the domains or the seed affects a variant's vectors."""
    method = METHODS[variant.method]
    return method.is_trainable and not (method.is_closed_form and variant.is_joint)


def _joint_evidence(
    variant: MethodVariant, backbone: Backbone, tasks: Sequence[TaskData]
) -> list[Floats] | None:
    """Compute the routing evidence ``[Q, T]`` of each task's queries by the sequential method's closed-form router.

    None for a variant whose own release has the evidence.
    """
    config = configure(variant.method, backbone.name, variant.settings)
    background = backbone.text_background
    if not (variant.is_joint and METHODS[variant.method].is_closed_form and background is not None):
        return None
    assert isinstance(config, AnalyticConfig)
    encoder = TextEncoder(backbone)
    captions = [(text, place) for place, task in enumerate(tasks) for text in task.training_captions]
    labels = np.array([place for _, place in captions])
    tokens, vectors = encoder([text for text, _ in captions])
    counts = token_counts(tokens, labels, backbone.vocabulary)
    parts = []
    for task in tasks:
        query_tokens, queries = encoder([text for clip in task.test for text in clip.captions[:1]])
        means = caption_evidence(vectors, labels, queries, background, within_tasks=True)
        words = profile_evidence(counts, query_tokens)
        parts.append(config.caption_evidence * means + config.word_evidence * words)
    return parts


def world_tables(runs: Sequence[WorldRun]) -> str:
    """Format Markdown tables of all runs.

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
        folder: Folder for the results; created if missing.
        command: Command line of the runs.
    """
    table = world_tables(runs)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(f"    {command}\n\n{table}", encoding="utf-8")
    results = {"command": command, "backbone": backbone, "runs": to_json_value(runs)}
    (folder / "results.json").write_text(json.dumps(results, allow_nan=False) + "\n", encoding="utf-8")
    return table


def _grouped(runs: Sequence[WorldRun]) -> list[tuple[str, list[WorldRun]]]:
    """Group the runs by label, in the order of their first runs."""
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
    """Format the differences to joint training, with the 95 % interval of a paired bootstrap over queries."""
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
    """Compute the mean over the orders of each query's hit, by world and domain in ascending order."""
    values = []
    for world in sorted({run.world for run in runs}):
        hits = [run.run.hits(gallery, k) for run in runs if run.world == world]
        for name in sorted(hits[0]):
            values.append(
                [statistics.fmean(same) for same in zip(*(part[name] for part in hits), strict=True)]
            )
    return values
