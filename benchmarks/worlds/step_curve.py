"""Recall against the number of gradient steps, for domains of several sizes.

    python -m benchmarks.worlds.step_curve --sizes 10,100,1000 --method strata --out DIR

Each point learns one drawn domain from the start with its number of steps, so that each learning rate schedule is
complete, and searches the same held-out videos in the domain's own shard. A step is a batch of 16 pairs of a video and
a caption. Methods in closed form take no steps and have one point per size.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clips.clip_results import ClipRun
from benchmarks.clips.method_on_clips import run_variant
from benchmarks.data.protocol_sources import WorldSource
from benchmarks.learning.method_variants import MethodVariant, parse_variant
from benchmarks.learning.output_memory import remember_outputs
from benchmarks.learning.task_preparation import prepare_source_tasks
from benchmarks.reporting.markdown_tables import format_mean, markdown_table
from models.backbones.backbone_loading import frame_spec, load_backbone
from trainer.methods import METHODS, configure

__all__ = ["StepPoint", "main", "measure_step_curve", "step_settings", "step_table"]

_BATCH = 16
_CATEGORIES, _HELD_OUT, _CAPTIONS = 3, 40, 5  # held-out videos per category, captions per video
_WORLD = 303  # seed of the videos, which no protocol uses
_DEPTHS = (1, 10)


@dataclass(frozen=True)
class StepPoint:
    """Runs with a number of steps.

    Attributes:
        videos: Number of training videos.
        steps: Number of gradient steps; 0 for a closed form.
        runs: One run per seed.
    """

    videos: int
    steps: int
    runs: tuple[ClipRun, ...]


def step_settings(pairs: int, steps: int) -> dict[str, int]:
    """Settings of a method that takes exactly a number of steps, in equal shares per epoch, or a few more.

    Args:
        pairs: Number of training pairs.
        steps: Number of steps.
    """
    epochs = math.ceil(steps / math.ceil(pairs / _BATCH))
    return {"batch_size": _BATCH, "epochs": epochs, "max_steps": steps}


def measure_step_curve(
    variant: MethodVariant,
    domain: str,
    sizes: Sequence[int],
    steps: Sequence[int],
    *,
    backbone: str,
    frames: int,
    seeds: int,
    cache: Path,
    report: Callable[[str], object] = lambda line: None,
) -> Iterator[StepPoint]:
    """Learn a domain of each size with each number of steps.

    Args:
        variant: Method with its settings.
        domain: Name of the drawn domain.
        sizes: Numbers of training videos, rounded up to a multiple of three.
        steps: Numbers of gradient steps.
        backbone: Name of the backbone.
        frames: Frames per video.
        seeds: Number of runs per point.
        cache: Folder of drawn frames and of features.
        report: Called with one line per run.

    Yields:
        Each point when its runs end.
    """
    configure(variant.method, backbone, variant.settings)  # validates the settings before videos are drawn
    has_steps = METHODS[variant.method].is_trainable and not METHODS[variant.method].is_closed_form
    spec = frame_spec(backbone, frames)
    loaded = load_backbone(backbone, spec.frames)
    remember_outputs(loaded, cache)
    for size in sizes:
        source = WorldSource(
            kind="world",
            domains=(domain,),
            seed=_WORLD,
            train=math.ceil(size / _CATEGORIES),
            val=0,
            test=_HELD_OUT,
            categories=_CATEGORIES,
            captions=_CAPTIONS,
        )
        tasks = prepare_source_tasks(source.tasks(None, None), spec, cache)
        for count in steps if has_steps else (0,):
            settings = step_settings(len(tasks[0].pairs), count) if count else {}
            limited = variant.model_copy(update={"settings": {**variant.settings, **settings}})
            runs = tuple(run_variant(limited, loaded, tasks, seed=seed) for seed in range(seeds))
            report(f"{size} videos, {count} steps: R@10 {runs[0].recall('local', 10):.1f}")
            yield StepPoint(len(tasks[0].train), count, runs)


def step_table(points: Sequence[StepPoint]) -> str:
    """Markdown table with a row per size and a column per number of steps: R@1 / R@10 in percent."""
    sizes, steps = (
        sorted({point.videos for point in points}),
        sorted({point.steps for point in points}),
    )
    cells = {
        (point.videos, point.steps): " / ".join(
            format_mean([run.recall("local", k) for run in point.runs], "{:.1f}") for k in _DEPTHS
        )
        for point in points
    }
    rows = [[str(size), *(cells.get((size, count), "–") for count in steps)] for size in sizes]
    return markdown_table(["videos", *(f"{count} steps" if count else "no steps" for count in steps)], rows)


def main() -> None:
    """Parse the command line, measure, and write ``steps.json`` and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="10,100,1000", help="numbers of training videos")
    parser.add_argument("--steps", default="8,15,30,60,120,240,480", help="numbers of gradient steps")
    parser.add_argument("--method", default="strata", help="method or variant")
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--frames", type=int, default=4, help="frames per video")
    parser.add_argument("--domain", default="night-traffic", help="drawn domain")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--cache", type=Path, help="folder of drawn frames (default: OUT/frames)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    points: list[StepPoint] = []
    for point in measure_step_curve(
        parse_variant(options.method),
        options.domain,
        [int(size) for size in options.sizes.split(",")],
        [int(count) for count in options.steps.split(",")],
        backbone=options.backbone,
        frames=options.frames,
        seeds=options.seeds,
        cache=options.cache or options.out / "frames",
        report=lambda line: sys.stderr.write(f"{line}\n"),
    ):
        points.append(point)
        figures = [
            {
                "videos": point.videos,
                "steps": point.steps,
                **{f"r{k}": [run.recall("local", k) for run in point.runs] for k in (1, 5, 10)},
                "seconds": [sum(run.seconds["training"]) for run in point.runs],
            }
            for point in points
        ]
        (options.out / "steps.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(step_table(points))


if __name__ == "__main__":
    main()
