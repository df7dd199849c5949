"""Run a method on a folder's domains: learn them in sequence, and rank every query."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks.clips.clip_results import GALLERIES, ClipRun, Matrix
from benchmarks.learning.protocol import MethodVariant
from benchmarks.learning.run_costs import ResourceMeter
from benchmarks.learning.sequential_learning import SequentialLearner
from models.backbones.backbone import Backbone
from models.routing import DEFAULT_PRIOR
from trainer.evaluation.gallery import Gallery, rank_by_id, recall_at, task_gallery
from trainer.evaluation.recall_row import EvaluationTask, Ranks, build_evaluation_tasks, rank_queries
from trainer.task_data import TaskData


def domain_order(tasks: Sequence[TaskData], seed: int) -> list[TaskData]:
    """Order the domains: as given for seed 0, otherwise shuffled with the seed."""
    ordered = list(tasks)
    if seed:
        random.Random(seed).shuffle(ordered)
    return ordered


def run_variant(
    variant: MethodVariant,
    backbone: Backbone,
    ordered: Sequence[TaskData],
    *,
    seed: int,
    report: Callable[[str], None] = lambda line: None,
) -> ClipRun:
    """Learn the domains one by one, and rank all queries after the last domain.

    After each domain, the queries of all learned domains are ranked in the default query mode, for the recall matrix.
    Vectors are rounded as the vector store does. A method that needs the videos of all domains is trained once, on
    their union.
    """
    learner = SequentialLearner(
        variant.method, backbone, {**variant.settings, "seed": seed}, round_vectors=True
    )
    meter = ResourceMeter(backbone.device)
    prior = DEFAULT_PRIOR if variant.prior is None else variant.prior
    matrices: dict[str, Matrix] = {"local": [], "global": []}
    galleries: list[Gallery] = []
    is_joint = variant.is_joint
    for number, part in enumerate([ordered] if is_joint else [[task] for task in ordered], 1):
        with meter.phase("training"):
            if is_joint:
                learner.train_jointly(part)
            else:
                learner.train(part[0])
        with meter.phase("indexing"):
            galleries += [task_gallery(task, learner.index(task)) for task in part]
        with meter.phase("evaluation"):
            _, measured = _evaluate(learner, galleries, prior)
        for gallery in ("local", "global"):
            row: list[float | None] = [100 * recall_at(ranks[gallery], 1) for ranks in measured]
            matrices[gallery].append(row + [None] * (len(ordered) - len(row)))
        spent = sum(durations[-1] for durations in meter.seconds.values())
        names = "all domains" if is_joint else f"domain {number} of {len(ordered)} ({part[0].name})"
        report(f"{names} in {spent:.1f} s")
    evaluated, final = _evaluate(learner, galleries, prior, raw=True)
    assert learner.method is not None
    return ClipRun(
        label=variant.label,
        seed=seed,
        order=tuple(task.task_id for task in ordered),
        ranks={
            gallery: {
                task.task_id: ranks[gallery].tolist() for task, ranks in zip(ordered, final, strict=True)
            }
            for gallery in GALLERIES
        },
        routed={
            task.task_id: (
                rank_by_id(part.evidence, range(len(ordered)), [position] * len(part.texts)) <= 1
            ).tolist()
            for position, (task, part) in enumerate(zip(ordered, evaluated, strict=True))
        },
        seconds=meter.seconds,
        clips={task.task_id: len(task.clips) for task in ordered},
        peak_mib=meter.peak_mib,
        matrices={} if is_joint else matrices,
        evidence={
            task.task_id: part.evidence.tolist() for task, part in zip(ordered, evaluated, strict=True)
        },
    )


def _evaluate(
    learner: SequentialLearner, galleries: Sequence[Gallery], prior: float, *, raw: bool = False
) -> tuple[list[EvaluationTask], list[Ranks]]:
    """Rank the queries of all learned domains; ``raw`` adds the gallery of raw cosines."""
    assert learner.release is not None
    encoder = learner.query_encoder()
    profiles = learner.release.profiles.to_dense()[: len(galleries)]
    tasks = build_evaluation_tasks(encoder, galleries, profiles)
    return tasks, rank_queries(encoder, tasks, prior, raw=raw)
