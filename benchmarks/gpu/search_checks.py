"""Measure searches whose texts are encoded on the device."""

from __future__ import annotations

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan
from benchmarks.search.search_latency import K, compare_latency, start_engine
from benchmarks.search.synthetic_library import make_library, prepare_catalog
from models.backbones.backbone_loading import load_backbone

_ROUNDS = 3
_COMPARED = 50  # searches
_MIN_AGREEMENT = 0.9  # share of the CPU's first results; rounding may swap near ties


def measure_searches(plan: GpuPlan) -> Figures:
    """Measure median latency with the text tower on the CPU and on the device in turns."""
    name = plan.backbone_name(plan.models[0])
    root = plan.folder / "searches"
    prepare_catalog(root, name)
    library = make_library(
        root / "library",
        load_backbone(name),
        tasks=plan.searched_domains,
        videos=plan.searched_vectors // plan.searched_domains,
        queries=plan.searches + _COMPARED,
    )
    on_cpu, on_device = start_engine(library), start_engine(library, query_device=plan.device)
    texts = [query.text for query in library.queries[: plan.searches]]
    compared = library.queries[plan.searches :]
    cpu, device = compare_latency(
        lambda text: on_cpu.search(text, K),
        lambda text: on_device.search(text, K),
        [(text, text) for text in texts],
        _ROUNDS,
    )
    answers = [
        [{result.video_id for result in engine.search(query.text, K).results} for query in compared]
        for engine in (on_cpu, on_device)
    ]
    agreement = sum(len(one & other) for one, other in zip(*answers, strict=True)) / sum(map(len, answers[0]))
    figures: Figures = {
        "vectors": library.vectors,
        "domains": library.tasks,
        "cpu_p50_ms": round(cpu.p50, 2),
        "p50_ms": round(device.p50, 2),
        "p99_ms": round(device.p99, 2),
        "agreement_at_10": round(agreement, 3),
    }
    if agreement < _MIN_AGREEMENT:
        raise CheckFailed("searches on the device do not find what those on the CPU find", figures)
    return figures
