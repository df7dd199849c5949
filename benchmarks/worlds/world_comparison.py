"""Runs of method variants on several worlds and orders of their domains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.clips.clip_results import ClipRun
from benchmarks.clips.method_on_clips import domain_order, run_variant
from benchmarks.data.protocol_sources import WorldSource
from benchmarks.errors import ProtocolError
from benchmarks.learning.method_variants import MethodVariant
from benchmarks.learning.output_memory import remember_outputs
from benchmarks.learning.protocol import Protocol
from benchmarks.learning.task_preparation import Progress, prepare_tasks
from benchmarks.routing.evidence_models import caption_evidence, profile_evidence, token_counts
from benchmarks.routing.routing_comparison import TextEncoder
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import frame_spec, load_backbone
from trainer.evaluation.evaluation_task import Floats
from trainer.methods import METHODS, configure
from trainer.methods.analytic import AnalyticConfig
from trainer.task_data import TaskData

__all__ = ["WorldRun", "compare_worlds"]


@dataclass(frozen=True)
class WorldRun:
    """A run on one world.

    Attributes:
        world: Seed of the world.
        is_joint: Whether all domains were learned at once.
        run: Ranks and costs; its seed is that of the method and of the order of the domains.
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

    Joint training in closed form gets the routing evidence of the sequential method, which its union of all domains
    does not have, so that both differ in their vectors alone.

    Args:
        protocol: Protocol whose source renders the world; further worlds have the next seeds.
        variants: Method variants.
        backbone: Name of the backbone.
        worlds: Number of worlds.
        orders: Number of orders, each with another seed of the method; see
            :func:`~benchmarks.clips.method_on_clips.domain_order`. Without training, and for joint training in closed
            form, the order has no effect and there is one.
        cache: Folder of frames and features.
        device: ``cpu`` or ``cuda``.
        progress: Called with the number of rendered videos and the number of videos to render.
        report: Called with one line per domain.

    Yields:
        Each run when it ends.

    Raises:
        ProtocolError: The source is not a video world.
        MethodError: Settings are invalid, or a method cannot use the backbone.
    """
    source = protocol.source
    if not isinstance(source, WorldSource):
        raise ProtocolError(f"{protocol.name} is not a video world; use `cinestrata bench run`")
    variants = [v.model_copy(update={"settings": protocol.settings_of(v)}) for v in variants]
    for variant in variants:  # validates the settings before videos are rendered
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
    """Whether the order of the domains or the seed affects the vectors of a variant."""
    method = METHODS[variant.method]
    return method.is_trainable and not (method.is_closed_form and variant.is_joint)


def _joint_evidence(
    variant: MethodVariant, backbone: Backbone, tasks: Sequence[TaskData]
) -> list[Floats] | None:
    """Routing evidence ``[Q, T]`` of the queries of each task by the router of the sequential method in closed form.

    None for a variant that has the evidence of its own release.
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
