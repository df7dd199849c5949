"""Comparison of search variants over the shards of all tasks: query mode, frame pooling, merging rule, router.

A method learns the tasks of a protocol once per seed. After the last task, every variant is evaluated on the same
vectors in the global gallery, the held-out videos of all tasks, with every caption of these videos as a query. Rules
are fitted to captions of training videos. Parameters that are selected by likelihood or rank (temperatures, biases,
a prior) use captions of validation videos, or training captions where a task has no validation captions. No rule uses
test queries.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.errors import ProtocolError
from benchmarks.learning.campaign import Campaign, Run
from benchmarks.learning.method_variants import MethodVariant
from benchmarks.learning.resource_meter import ResourceMeter
from benchmarks.learning.run_results import result_path, to_json_value
from benchmarks.merging.learned_shards import LearnedShards, learn_shards
from benchmarks.merging.merging_rules import COSINE, SERVED, merging_rules, select_candidate, served_scores
from benchmarks.merging.score_calibration import centroids, keep_candidates, prototype_weights
from benchmarks.merging.score_matrices import (
    QueryModeScores,
    SplitCaptions,
    encode_in_chunks,
    split_captions,
)
from models.backbones.backbone import Backbone
from models.routing.router import log_weights
from trainer.evaluation.retrieval_metrics import Recall, rank_by_id, recall_at, summarize
from trainer.task_data import Split

__all__ = [
    "MergingComparison",
    "SearchVariant",
    "VariantResult",
    "clustered_mean",
    "compare_merging",
    "evaluate_variants",
    "served_variant",
]

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]
Pooling = Literal["mean", "max", "softmax"]

_TAUS = (0.01, 0.02, 0.05, 0.1, 0.2)  # temperatures of late interaction
_CANDIDATE_COUNTS = (1, 2, 4)  # r of hard routing
_PROTOTYPE_COUNTS = (1, 4)  # prototypes per task
_DEPTHS = (1, 5, 10)
_MODES = ("pinned", "mapped", "latest")  # in the order of preference of the service


@dataclass(frozen=True)
class SearchVariant:
    """One way to search the shards of all tasks.

    Attributes:
        queries: Query mode.
        frames: Pooling of the frames of a video.
        rule: Merging rule.
        router: Router that selects candidate tasks; empty if all tasks are ranked alike.
        candidates: Number r of candidate tasks that are ranked before all others.
    """

    queries: str
    frames: Pooling
    rule: str
    router: str = ""
    candidates: int | None = None


@dataclass(frozen=True)
class VariantResult:
    """Result of a search variant on all queries of all tasks in the global gallery.

    Attributes:
        variant: The variant.
        recall: Recalls as shares 0..1, and ranks.
        gain: Mean of R@1, R@5 and R@10 minus that of the served variant, in percentage points.
        error: Standard error of the gain: differences are paired by query, and the captions of one video count as
            one sample.
        chosen: Parameters selected with validation captions.
        validation: Mean reciprocal rank of validation captions; None for hard routing, which selects nothing.
        accuracy: Routing accuracy@r, 0..1.
    """

    variant: SearchVariant
    recall: Recall
    gain: float
    error: float
    chosen: str = ""
    validation: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class MergingComparison:
    """Results of all variants for one seed.

    Attributes:
        label: The method with its settings.
        data: Identity of the evaluated data.
        measures: Result of each variant.
        vectors: Stored vectors per video of each pooling.
        dim: Dimensions of a vector, in float32.
        seconds: Seconds of learning (with embedding) and of measuring.
        settings, facts: See :class:`benchmarks.learning.run_results.RunResult`.
    """

    protocol: str
    label: str
    method: str
    seed: int
    data: str
    tasks: list[str]
    measures: list[VariantResult]
    vectors: dict[str, int]
    dim: int
    seconds: dict[str, list[float]]
    settings: Mapping[str, Any]
    facts: dict[str, Any]

    def best(self, poolings: Sequence[str]) -> VariantResult:
        """The variant with these poolings that ranks validation captions best."""
        selectable = [r for r in self.measures if r.validation is not None and r.variant.frames in poolings]
        return max(selectable, key=lambda result: result.validation or 0.0)


def compare_merging(
    campaign: Campaign, variant: MethodVariant, backbone: Backbone, seed: int, report: Callable[[str], None]
) -> MergingComparison:
    """Learn the tasks with one seed, evaluate all variants, and write the result as JSON.

    The file is in ``results/`` of the campaign's output folder.

    Args:
        campaign: Protocol, tasks and output folder.
        variant: Method with its settings.
        backbone: Loaded backbone of the campaign.
        seed: Seed of the method.
        report: Called with one line per finished step.

    Raises:
        ProtocolError: The variant sets ``reindex`` or ``prior``, or the method has no shards to merge.
    """
    if variant.reindex or variant.prior is not None:
        raise ProtocolError(f"{variant.label}: this command compares reindex and prior; omit them")
    settings = {**campaign.protocol.settings_of(variant), "seed": seed}
    meter = ResourceMeter(backbone.device)
    with meter.phase("learning"):
        learned = learn_shards(variant.method, backbone, campaign.tasks, settings, report)
    with meter.phase("measuring"):
        measures = evaluate_variants(learned)
    frames = {"max": campaign.frames, "softmax": campaign.frames} if learned.frames is not None else {}
    comparison = MergingComparison(
        protocol=campaign.protocol.name,
        label=variant.label,
        method=variant.method,
        seed=seed,
        data=campaign.data,
        tasks=[task.task_id for task in campaign.tasks],
        measures=measures,
        vectors={"mean": 1, **frames},
        dim=learned.videos[0].shape[1],
        seconds=meter.seconds,
        settings=learned.settings,
        facts=campaign.run_facts(Run(variant, seed)),
    )
    path = result_path(campaign.out, variant.label, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(f".{os.getpid()}.staged")
    staged.write_text(json.dumps(to_json_value(comparison), allow_nan=False) + "\n", encoding="utf-8")
    staged.replace(path)
    report(f"measured in {sum(meter.seconds['measuring']):.0f} s")
    return comparison


def evaluate_variants(learned: LearnedShards) -> list[VariantResult]:
    """Evaluate every merging rule and router on mean-pooled videos.

    Late interaction is evaluated with three rules only: raw cosines, the served rule and the best rule.
    """
    tuning_splits: list[Split] = [
        "val" if any(clip.captions for clip in task.val) else "train" for task in learned.tasks
    ]
    captions: dict[Split, SplitCaptions] = {
        "train": split_captions(learned.tasks, ["train"] * len(tuning_splits)),
        "val": split_captions(learned.tasks, tuning_splits),
        "test": split_captions(learned.tasks, ["test"] * len(tuning_splits)),
    }
    routers = _routers(learned, captions)
    ranks: dict[SearchVariant, Floats] = {}
    details: dict[SearchVariant, dict[str, Any]] = {}
    for mode in learned.encoder.modes:
        scores = QueryModeScores(learned, captions, mode)
        for frames, tau in _poolings(scores, learned.frames is not None):
            tuning, test = scores.matrix("val", tau), scores.matrix("test", tau)
            selected = {
                rule: select_candidate(candidates, tuning)
                for rule, candidates in merging_rules(scores.matrix("train", tau), tuning).items()
            }
            best = max(selected, key=lambda rule: selected[rule][1])
            for rule in selected if frames == "mean" else dict.fromkeys((COSINE, SERVED, best)):
                variant, (candidate, validation) = SearchVariant(mode, frames, rule), selected[rule]
                parameters = ", ".join(filter(None, (f"τ {tau:g}" if tau else "", candidate.parameters)))
                ranks[variant] = test.ranks(candidate.score(test))
                details[variant] = {"chosen": parameters, "validation": validation}
            if frames != "mean":
                continue
            for (router, weights), r in product(routers.items(), _CANDIDATE_COUNTS):
                own_rank = rank_by_id(weights, range(weights.shape[1]), test.rows.tolist())
                for rule in (COSINE, SERVED) if r < len(learned.tasks) else ():
                    variant = SearchVariant(mode, frames, rule, router, r)
                    routed = keep_candidates(selected[rule][0].score(test), test.columns, weights, r)
                    ranks[variant], details[variant] = (
                        test.ranks(routed),
                        {"accuracy": recall_at(own_rank, r)},
                    )
    reference = _hit_rates(ranks[served_variant(learned.encoder.modes)])
    truth = captions["test"].truth
    results = []
    for variant, variant_ranks in ranks.items():
        recall = summarize(variant_ranks)
        assert recall is not None
        gain, error = clustered_mean(_hit_rates(variant_ranks) - reference, truth)
        results.append(VariantResult(variant, recall, gain, error, **details[variant]))
    return results


def served_variant(modes: Container[str]) -> SearchVariant:
    """The variant of the service: its preferred available mode, with evidence added to mean-pooled cosines."""
    return SearchVariant(next(mode for mode in _MODES if mode in modes), "mean", SERVED)


def clustered_mean(values: Floats, clusters: Ints) -> tuple[float, float]:
    """Mean of values ``[Q]`` and its standard error, with each cluster as one sample.

    Args:
        values: One value per query.
        clusters: Cluster of each query ``[Q]``, here its video.
    """
    mean = values.mean()
    sums = np.bincount(clusters, weights=values - mean)
    return float(mean), float(np.sqrt((sums**2).sum()) / len(values))


def _poolings(scores: QueryModeScores, has_frames: bool) -> Iterator[tuple[Pooling, float | None]]:
    """Each pooling with its temperature; the softmax temperature is selected under the served rule."""
    yield "mean", None
    if not has_frames:
        return
    yield "max", 0.0
    matrices = {tau: scores.matrix("val", tau) for tau in _TAUS}
    yield "softmax", max(_TAUS, key=lambda tau: matrices[tau].reciprocal_rank(served_scores(matrices[tau])))


def _routers(learned: LearnedShards, captions: Mapping[Split, SplitCaptions]) -> dict[str, Floats]:
    """Weights ``[Q, T]`` of the test queries, by the name of the router."""
    test, training = captions["test"], captions["train"]
    encoder = learned.encoder
    queries, bank = (
        encode_in_chunks(encoder.encode_with_backbone, split.texts) for split in (test, training)
    )
    routers: dict[str, Floats] = {"words": log_weights(encoder.token_presence(test.texts), learned.profiles)}
    for k in _PROTOTYPE_COUNTS:
        rng = np.random.default_rng(0)
        prototypes = [centroids(bank[training.rows == task], k, rng) for task in range(len(learned.tasks))]
        routers[f"{k} prototype{'s' * (k > 1)}"] = prototype_weights(queries, prototypes)
    return routers


def _hit_rates(ranks: Floats) -> Floats:
    """Mean of the hits at 1, 5 and 10 of each query ``[Q]``, in percent."""
    return 100 * (ranks[:, None] <= _DEPTHS).mean(axis=1)
