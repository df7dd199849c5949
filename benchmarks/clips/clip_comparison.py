"""Comparison of methods with the ridge rivals on the domains of a folder, on the same frames and splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.clips.clip_domains import read_clip_domains
from benchmarks.clips.clip_results import ClipRun
from benchmarks.clips.method_on_clips import run_variant
from benchmarks.clips.ridge_rival import FEATURE_BACKBONE, extract_features, run_ridge, select_settings
from benchmarks.learning.method_variants import MethodVariant
from benchmarks.learning.task_preparation import Progress, prepare_source_tasks
from benchmarks.rivals import METHODS, configure
from models.backbones.backbone import FrameSpec
from models.backbones.backbone_loading import frame_spec, load_backbone
from models.routing import DEFAULT_PRIOR

_DOMAIN_RIDGES, _JOINT_RIDGE = "ridge per domain", "ridge over all domains"


def compare_on_clips(
    folder: Path,
    variants: Sequence[MethodVariant],
    *,
    backbone: str,
    seeds: int,
    cache: Path,
    device: str = "cpu",
    workers: int = 1,
    progress: Progress = lambda done, total: None,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[list[ClipRun], list[ClipRun]]:
    """Run the methods and the rivals.

    The rivals read the same frames as the methods, in the size of their image features. Each rival is routed by words,
    and by the routing evidence of the first variant, once per run of that variant.

    Args:
        folder: Folder of the domains; see :func:`~benchmarks.clips.clip_domains.read_clip_domains`.
        variants: Methods with their settings.
        seeds: Number of runs of a trained method; see :func:`~benchmarks.clips.method_on_clips.domain_order`.
        cache: Folder of decoded frames.
        device: ``cpu`` or ``cuda``.
        workers: Number of decoding processes.
        progress: Called with the number of decoded clips and the number of clips to decode.
        report: Called with one line per domain and run.

    Returns:
        The runs of the methods and those of the rivals.

    Raises:
        ProtocolError: The folder or a clip cannot be used.
        MethodError: Settings are invalid, or a method cannot use the backbone.
    """
    domains = read_clip_domains(folder)
    for variant in variants:  # validates the settings before videos are decoded
        configure(variant.method, backbone, variant.settings)
    spec = frame_spec(backbone, None)
    tasks = prepare_source_tasks(domains, spec, cache, workers=workers, progress=progress)
    rival_spec = FrameSpec(spec.frames, frame_spec(FEATURE_BACKBONE, spec.frames).size)
    rival_tasks = prepare_source_tasks(domains, rival_spec, cache, workers=workers, progress=progress)
    features = extract_features(
        load_backbone(FEATURE_BACKBONE, spec.frames).to(device),
        rival_tasks,
        lambda line: report(f"{_DOMAIN_RIDGES}: {line}"),
    )
    loaded = load_backbone(backbone, spec.frames).to(device)
    methods = []
    for variant in variants:
        for seed in range(seeds if METHODS[variant.method].is_trainable else 1):
            name = f"{variant.label}, seed {seed}"
            methods.append(
                run_variant(
                    variant,
                    loaded,
                    tasks,
                    seed=seed,
                    report=lambda line, name=name: report(f"{name}: {line}"),  # type: ignore[misc]
                )
            )
    rivals = []
    for name, joint in ((_DOMAIN_RIDGES, False), (_JOINT_RIDGE, True)):
        settings = select_settings(features, joint=joint, prior=DEFAULT_PRIOR)
        report(f"{name}: {settings}")
        for routing in (None, *(run for run in methods if run.label == variants[0].label)):
            label = f"{name}, routed {'by words' if routing is None else f'as {routing.label}'}"
            rivals.append(
                run_ridge(features, settings, joint=joint, prior=DEFAULT_PRIOR, label=label, routing=routing)
            )
    return methods, rivals
