"""Compare methods on a sequence of domains: with the ridge rivals on the same frames, and with fewer captions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.clips.clip_runs import ClipRun, domain_order, run_variant
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
from benchmarks.rivals import METHODS, configure
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.routing import DEFAULT_PRIOR
from trainer.task_data import TaskData

_DOMAIN_RIDGES, _JOINT_RIDGE = "ridge per domain", "ridge over all domains"


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
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[list[ClipRun], list[ClipRun]]]:
    """Run the methods, one seed after the other, and the rivals.

    The rivals read the same frames as the methods, at the size that their image features need. Each rival is routed by
    words, and also by the first variant's routing evidence, once per run of that variant. A frozen network computes
    each video's tokens once for all runs, so training times do not include it.

    Args:
        shuffled: Whether each seed but the first shuffles the domains.

    Raises:
        ProtocolError: A clip cannot be used.
        MethodError: Settings are invalid, or a method cannot use the backbone.
    """
    for variant in variants:  # validate settings before decoding videos
        configure(variant.method, backbone, variant.settings)
    spec = frame_spec(backbone, frames)
    tasks = prepare_source_tasks(domains, spec, cache, workers=workers, progress=progress)
    features: list[DomainFeatures] = []
    chosen: dict[bool, RidgeSettings] = {}
    if ridges:
        rival_spec = FrameSpec(spec.frames, frame_spec(FEATURE_BACKBONE, spec.frames).size)
        rival_tasks = prepare_source_tasks(domains, rival_spec, cache, workers=workers, progress=progress)
        features = extract_features(
            load_backbone(FEATURE_BACKBONE, spec.frames).to(device),
            rival_tasks,
            lambda line: report(f"{_DOMAIN_RIDGES}: {line}"),
        )
        chosen = {
            joint: select_settings(features, joint=joint, prior=DEFAULT_PRIOR) for joint in (False, True)
        }
    loaded = _load(backbone, spec, device, cache, report)
    for joint, settings in chosen.items():
        report(f"{_rival_name(joint)}: {settings}")
    methods: list[ClipRun] = []
    rivals: list[ClipRun] = []
    for seed in range(seeds):
        for variant in variants:
            if seed and not METHODS[variant.method].is_trainable:
                continue
            name = f"{variant.label}, seed {seed}"
            run = run_variant(
                variant,
                loaded,
                domain_order(tasks, seed) if shuffled else tasks,
                seed=seed,
                report=lambda line, name=name: report(f"{name}: {line}"),  # type: ignore[misc]
            )
            methods.append(run)
            if variant is variants[0]:
                for routing in (run,) if seed else (None, run):
                    rivals += [
                        _run_rival(features, settings, joint, routing) for joint, settings in chosen.items()
                    ]
            yield methods, rivals


def _load(name: str, spec: FrameSpec, device: str, cache: Path, report: Callable[[str], None]) -> Backbone:
    backbone = load_backbone(name, spec.frames).to(device)
    report(f"{name} runs in {backbone.engine}")
    remember_outputs(backbone, cache)
    return backbone


def _rival_name(joint: bool) -> str:
    return _JOINT_RIDGE if joint else _DOMAIN_RIDGES


def _run_rival(
    features: Sequence[DomainFeatures], settings: RidgeSettings, joint: bool, routing: ClipRun | None
) -> ClipRun:
    label = f"{_rival_name(joint)}, routed {'by words' if routing is None else f'as {routing.label}'}"
    return run_ridge(features, settings, joint=joint, prior=DEFAULT_PRIOR, label=label, routing=routing)


@dataclass(frozen=True)
class CurvePoint:
    """The runs, one per seed, with captions for a limited number of training clips per domain; None: all."""

    limit: int | None
    clips: int
    runs: tuple[ClipRun, ...]


def keep_captions(task: TaskData, limit: int, seed: int) -> TaskData:
    """Remove the captions from all but ``limit`` training clips.

    Clips are selected by a hash of seed and ID, so a larger limit keeps all captions of a smaller one.
    """
    captioned = [clip.id for clip in task.train if clip.captions]
    ranked = sorted(captioned, key=lambda clip: hashlib.sha256(f"{seed} {clip}".encode()).digest())
    removed = set(ranked[limit:])
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
    report: Callable[[str], None] = lambda line: None,
) -> list[CurvePoint]:
    """Learn the domains with fewer captions, and with all.

    Held-out clips and their queries are the same for all points. A seed selects the captioned clips and the order of
    the domains.
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
            limited = tasks if limit is None else [keep_captions(task, limit, seed) for task in tasks]
            clips = _count_captioned(limited)
            name = f"{limit or 'all'} captioned clips, seed {seed}"
            runs.append(
                run_variant(
                    variant,
                    loaded,
                    domain_order(limited, seed),
                    seed=seed,
                    report=lambda line, name=name: report(f"{name}: {line}"),  # type: ignore[misc]
                )
            )
        points.append(CurvePoint(limit, clips, tuple(runs)))
    return points


def _count_captioned(tasks: Sequence[TaskData]) -> int:
    return sum(bool(clip.captions) for task in tasks for clip in task.train)
