"""Methods side by side on a sequence of domains: same videos, same captions, same number of steps.

A method learns one domain after the other and fills the recall matrix A[i, t] on stored vectors, as the
worker does, but in memory and without the service.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.world import Clip as WorldClip
from benchmarks.world import make_domain, render
from models.backbone import Backbone
from models.release import ReleaseState
from models.routing import PRIOR
from trainer.data import Clip, StoredVectors, TaskData
from trainer.embedding import MemoryShard, embed
from trainer.evaluate.matrix import Gallery, Query, evaluate_row
from trainer.evaluate.metrics import backward_forgetting, forgetting_rate, harmonic_mean, mean_final
from trainer.loop import learn_task
from trainer.methods import start_method

__all__ = ["DomainSequence", "Result", "prepare", "run_method", "table", "write_results"]


@dataclass(frozen=True)
class DomainSequence:
    """A sequence of domains of the video world; counts are per category, defaults those of the demo."""

    domains: tuple[str, ...]
    world_seed: int = 7
    train: int = 16
    val: int = 4
    test: int = 40
    categories: int = 3
    captions: int = 5


@dataclass
class Result:
    """What one method with one seed came to.

    Attributes:
        matrices: ``matrices[mode][gallery]`` is A[i][t], Recall@1 in percent.
        recalls: means over the tasks, after the last: mode → gallery → R@1, R@5, R@10 in percent, MedR, MeanR.
        routing: routing accuracy@1 of the last release in percent, mean over the tasks.
        seconds: wall time per task.
        steps: optimiser steps per task.
    """

    method: str
    seed: int
    matrices: dict[str, dict[str, list[list[float | None]]]] = field(default_factory=dict)
    recalls: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    routing: float | None = None
    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def summary(self) -> dict[str, float | None]:
        """The figures of a table row, by ``measure (mode)``."""
        row: dict[str, float | None] = {}
        for mode, galleries in self.matrices.items():
            for gallery in ("local", "global"):
                matrix = galleries[gallery]
                row[f"R@1 {gallery} ({mode})"] = mean_final(matrix)
                row[f"BWF {gallery} ({mode})"] = backward_forgetting(matrix)
            row[f"FR ({mode})"] = forgetting_rate(galleries["local"])
            row[f"HM ({mode})"] = harmonic_mean(galleries["local"])
        return row


def prepare(sequence: DomainSequence, backbone: Backbone, cache: Path) -> list[TaskData]:
    """Render every clip once into the frame cache, ``uint8 [M, H, W, 3]`` each; what is there is kept."""
    frames, size = backbone.spec
    times = ((np.arange(frames) + 0.5) / frames).tolist()
    tasks: list[TaskData] = []
    number = 0
    for domain in sequence.domains:
        folder = cache / f"{domain}-{sequence.world_seed}-{frames}x{size}"
        folder.mkdir(parents=True, exist_ok=True)
        clips: list[Clip] = []
        for world_clip in make_domain(
            domain,
            seed=sequence.world_seed,
            train=sequence.train,
            val=sequence.val,
            test=sequence.test,
            categories=sequence.categories,
            captions=sequence.captions,
        ):
            number += 1
            clips.append(_cached(world_clip, number, folder / f"{world_clip.id}.npy", size, times))
        tasks.append(TaskData(task_id=domain, name=domain, clips=tuple(clips)))
    return tasks


def run_method(
    name: str,
    backbone: Backbone,
    tasks: Sequence[TaskData],
    *,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    prior: float = PRIOR,
    report: Callable[[str], None] = lambda line: None,
) -> Result:
    """Learn the tasks in order with one method, and measure after each.

    Args:
        prior: of routing in the union gallery; 0 merges raw cosines.
    """
    result = Result(method=name, seed=seed)
    galleries: list[Gallery] = []
    pinned: dict[str, ReleaseState] = {}
    sources: list[tuple[MemoryShard, npt.NDArray[np.int64]]] = []
    previous: ReleaseState | None = None
    for task in tasks:
        start = time.perf_counter()
        steps = 0

        def count(_: object) -> None:
            nonlocal steps
            steps += 1

        method = start_method(
            name, backbone, {"seed": seed, **(settings or {})} if name != "zero_shot" else {}, previous
        )
        learn_task(method, task, StoredVectors(sources), report=count)
        previous = method.release()
        ids = np.array([clip.vector_id for clip in task.clips], np.int64)
        shard = MemoryShard(ids, embed(method.encode_videos, task.clips))
        sources.append((shard, np.array([clip.vector_id for clip in task.train], np.int64)))
        galleries.append(
            Gallery(
                task=task.task_id,
                shard=shard,
                held_out=np.array([clip.vector_id for clip in task.test], np.int64),
                queries=tuple(Query(clip.captions[0], clip.vector_id) for clip in task.test),
            )
        )
        pinned[task.task_id] = previous
        row = evaluate_row(method.query_encoder(pinned), galleries, method.profiles.numpy(), prior=prior)
        _fill(result, row.recalls, [gallery.task for gallery in galleries], len(tasks))
        routing = [value for value in row.routing.values() if value is not None]
        result.routing = 100 * statistics.fmean(routing) if routing else None
        result.seconds.append(time.perf_counter() - start)
        result.steps.append(steps)
        report(f"{name} seed {seed}: {task.name} in {result.seconds[-1]:.0f} s")
    return result


def table(results: Sequence[Result]) -> str:
    """Markdown: one row per method and query mode, mean ± standard deviation over the seeds."""
    header = ["method", "queries", "R@1 global", "R@1 local", "BWF global", "BWF local", "FR", "HM", "seeds"]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for name in dict.fromkeys(result.method for result in results):
        runs = [result for result in results if result.method == name]
        for mode in runs[0].matrices:
            summaries = [run.summary() for run in runs]
            cells = [
                _spread([summary[f"{measure} ({mode})"] for summary in summaries])
                for measure in ("R@1 global", "R@1 local", "BWF global", "BWF local", "FR", "HM")
            ]
            lines.append("| " + " | ".join([name, mode, *cells, str(len(runs))]) + " |")
    return "\n".join(lines) + "\n"


def write_results(
    results: Sequence[Result], sequence: DomainSequence, backbone: Backbone, folder: Path
) -> None:
    """``results.json`` with everything needed to read the figures again, and ``table.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "sequence": asdict(sequence),
        "backbone": {
            "name": backbone.name,
            "fingerprint": backbone.fingerprint,
            "frames": backbone.spec.frames,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "results": [asdict(result) | {"summary": result.summary()} for result in results],
    }
    (folder / "results.json").write_text(json.dumps(facts, indent=1) + "\n")
    (folder / "table.md").write_text(table(results))


def _cached(clip: WorldClip, number: int, path: Path, size: int, times: Sequence[float]) -> Clip:
    if not path.exists():
        staged = path.with_suffix(".tmp.npy")
        np.save(staged, render(clip, size=size, times=times))
        staged.replace(path)
    return Clip(clip.id, number, path, clip.captions, clip.split)  # type: ignore[arg-type]


def _fill(result: Result, recalls: Mapping[str, Any], learned: Sequence[str], width: int) -> None:
    for mode, by_gallery in recalls.items():
        for gallery, by_task in by_gallery.items():
            measured = [by_task[task] for task in learned]
            matrix = result.matrices.setdefault(mode, {}).setdefault(gallery, [])
            matrix.append([100 * recall.r1 for recall in measured] + [None] * (width - len(learned)))
            result.recalls.setdefault(mode, {})[gallery] = {
                measure: factor * statistics.fmean(getattr(recall, measure) for recall in measured)
                for measure, factor in (("r1", 100), ("r5", 100), ("r10", 100), ("medr", 1), ("meanr", 1))
            }


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    return f"{statistics.fmean(known):.2f} ± {deviation:.2f}"
