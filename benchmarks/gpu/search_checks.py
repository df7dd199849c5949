"""Measure searches whose texts are encoded on the device."""

from __future__ import annotations

from benchmarks.gpu.check_runner import CheckFailed, Figures, GpuPlan
from benchmarks.search.search_latency import K, compare_latency, measure_recall, start_engine
from benchmarks.search.synthetic_library import make_library, prepare_catalog
from models.backbones.backbone_loading import load_backbone

_ROUNDS = 3
_MIN_RECALL = 0.5  # a target lies at a cosine of 0.9 from its query, all others below


def measure_searches(plan: GpuPlan) -> Figures:
    """Measure median latency with the text tower on the CPU and on the device in turns."""
    name = plan.backbone_name(plan.models[0])
    root = plan.folder / "searches"
    prepare_catalog(root, name)
    library = make_library(
        root / "library",
        load_backbone(name),
        tasks=plan.searched_domains,
        vectors=plan.searched_vectors,
        captions=plan.searches + 50,
    )
    on_cpu, on_device = start_engine(library), start_engine(library, query_device=plan.device)
    texts = [query.text for query in library.queries[: plan.searches]]
    cpu, device = compare_latency(
        lambda text: on_cpu.search(text, K),
        lambda text: on_device.search(text, K),
        [(text, text) for text in texts],
        _ROUNDS,
    )
    recall = measure_recall(on_device, library.queries[plan.searches :][:50], "auto")
    figures: Figures = {
        "vectors": library.vectors,
        "domains": library.tasks,
        "cpu_p50_ms": round(cpu.p50, 2),
        "p50_ms": round(device.p50, 2),
        "p99_ms": round(device.p99, 2),
        "recall_at_10": round(recall, 3),
    }
    if recall < _MIN_RECALL:
        raise CheckFailed("searches on the device do not find their targets", figures)
    return figures
