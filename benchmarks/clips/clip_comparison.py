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
