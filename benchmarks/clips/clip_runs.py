"""Results of runs on a sequence of domains, and the run of a method: it learns them, and ranks every query."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.learning.protocol import MethodVariant
from benchmarks.learning.sequential_learning import ResourceMeter, SequentialLearner
from models.backbones.backbone import Backbone
from models.forgetting_measures import backward_forgetting
from models.routing import DEFAULT_PRIOR
from trainer.evaluation.gallery import Gallery, rank_by_id, recall_at, task_gallery
from trainer.evaluation.recall_row import (
    EvaluationTask,
    GalleryName,
    Ranks,
    build_evaluation_tasks,
    rank_queries,
)
from trainer.task_data import TaskData

Matrix = list[list[float | None]]

# Galleries in the tables: held-out and all videos of a query's own shard; held-out videos of all shards, with and
# without routing evidence.
GALLERIES: tuple[GalleryName, ...] = ("local", "local_all", "global", "global_raw")


@dataclass(frozen=True)
class ClipRun:
    """Ranks and costs of one run, by domain."""

    label: str
    seed: int
    order: tuple[str, ...]  # of learning
    ranks: Mapping[str, Mapping[str, Sequence[float]]]  # of each query's clip, from 1, by gallery
    routed: Mapping[str, Sequence[bool]]  # whether each query's own domain has the largest routing evidence
    seconds: Mapping[str, Sequence[float]]  # wall time by phase, in the order of learning; one value if joint
    clips: Mapping[str, int]
    peak_mib: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of the process, like ``seconds``
    # R@1 of release i on domain t; empty if joint
    matrices: Mapping[str, Matrix] = field(default_factory=dict)
    # In ``order``; not for rivals.
    evidence: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    settings: str = ""  # of a rival, in words

    def recall(self, gallery: str, k: int) -> float:
        """Compute R@k in percent, averaged over the domains."""
        return domain_mean([self.hits(gallery, k)[name] for name in sorted(self.order)])

    def query_recall(self, gallery: str, k: int) -> float:
        """Compute R@k in percent, averaged over the queries of all domains."""
        return query_mean([self.hits(gallery, k)[name] for name in sorted(self.order)])

    def hits(self, gallery: str, k: int) -> dict[str, list[float]]:
        """Score each query 100 if its clip is among the first k, otherwise 0; by domain."""
        return {name: [100.0 * (rank <= k) for rank in ranks] for name, ranks in self.ranks[gallery].items()}

    def routing(self) -> float | None:
        """Compute routing accuracy@1 in percent, averaged over the domains; None without routing evidence."""
        if not self.routed:
            return None
        return domain_mean([[100.0 * hit for hit in hits] for hits in self.routed.values()])

    def forgetting(self, gallery: str) -> float | None:
        """Compute BWF of R@1 in percentage points; None for a joint solution."""
        matrix = self.matrices.get(gallery)
        return backward_forgetting(matrix) if matrix else None

    @property
    def seconds_per_domain(self) -> float:
        """Mean wall time to learn, embed and measure a domain."""
        return sum(map(sum, self.seconds.values())) / len(self.order)

    @property
    def peak(self) -> float | None:
        """Peak memory of the process over all domains, in MiB; None for a rival."""
        return max((max(values) for values in self.peak_mib.values()), default=None)

    @property
    def seconds_per_100_clips(self) -> float:
        """Wall time of all domains per 100 clips."""
        return 100 * sum(map(sum, self.seconds.values())) / sum(self.clips.values())


def domain_mean(values: Sequence[Sequence[float]]) -> float:
    """Average over each domain's queries, then over the domains."""
    return sum(sum(part) / len(part) for part in values) / len(values)


def query_mean(values: Sequence[Sequence[float]]) -> float:
    """Compute the mean over the queries of all domains."""
    return sum(map(sum, values)) / sum(map(len, values))


_RESAMPLES = 10_000

Interval = tuple[float, float, float]  # difference, lower and upper bound


def difference_interval(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, pooled: bool = False
) -> Interval:
    """Compute the mean difference of values by domain with its 95 % bootstrap interval; pooled: over the queries."""
    differences = [np.subtract(a, b, dtype=np.float64) for a, b in zip(first, second, strict=True)]
    sizes = np.array([len(part) for part in differences], np.float64)
    weights = sizes / sizes.sum() if pooled else np.full(len(sizes), 1 / len(sizes))
    rng = np.random.default_rng(0)
    means = np.zeros(_RESAMPLES)
    for part, weight in zip(differences, weights, strict=True):
        distinct, counts = np.unique(part, return_counts=True)  # few values, so their counts are drawn
        drawn = rng.multinomial(len(part), counts / len(part), _RESAMPLES)
        means += weight * (drawn @ distinct) / len(part)
    observed = float(sum(weight * part.mean() for part, weight in zip(differences, weights, strict=True)))
    low, high = np.percentile(means, [2.5, 97.5])
    return observed, float(low), float(high)


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
                rank_by_id(part.evidence, range(len(ordered)), [index] * len(part.texts)) <= 1
            ).tolist()
            for index, (task, part) in enumerate(zip(ordered, evaluated, strict=True))
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
    profiles = learner.release.profiles.part(0, len(galleries))
    tasks = build_evaluation_tasks(encoder, galleries, profiles)
    return tasks, rank_queries(encoder, tasks, prior, raw=raw)
