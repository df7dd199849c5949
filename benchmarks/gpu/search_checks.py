"""Measure searches whose texts are encoded on the device: latency in process, and capacity over HTTP."""

from __future__ import annotations

import os

from benchmarks.gpu.check_plan import GpuPlan
from benchmarks.gpu.check_runner import CheckFailed, Figures
from benchmarks.search.search_latency import K, compare_latency, measure_recall, start_engine
from benchmarks.search.synthetic_library import SyntheticLibrary, make_library, prepare_catalog
from models.backbones.backbone_loading import load_backbone

_ROUNDS = 3
_MIN_RECALL = 0.5  # a target lies at a cosine of 0.9 from its query, all others below


def measure_searches(plan: GpuPlan) -> Figures:
    """Measure median latency with the text tower on the CPU and on the device in turns, then searches per second."""
    name = plan.backbone_name(plan.models[0])
    root = plan.folder / "searches"
    prepare_catalog(root, name)
    library = make_library(
        root / "library",
        load_backbone(name),
        tasks=plan.searched_domains,
        vectors=plan.searched_vectors,
        captions=4 * plan.searches,
    )
    on_cpu, on_device = start_engine(library), start_engine(library, query_device=plan.device)
    texts = [query.text for query in library.queries[: plan.searches]]
    latency = compare_latency(
        lambda text: on_cpu.search(text, K),
        lambda text: on_device.search(text, K),
        [(text, text) for text in texts],
        _ROUNDS,
    )
    recall = measure_recall(on_device, library.queries[plan.searches :][:50], "auto")
    figures: Figures = {
        "vectors": library.vectors,
        "domains": library.tasks,
        "cpu_p50_ms": round(latency.first.p50, 2),
        "p50_ms": round(latency.second.p50, 2),
        "p99_ms": round(latency.second.p99, 2),
        "recall_at_10": round(recall, 3),
    }
    if recall < _MIN_RECALL:
        raise CheckFailed("searches on the device do not find their targets", figures)
    try:
        figures |= _measure_capacity(plan, library)
    except ImportError as error:
        figures["capacity"] = f"left out: {error}"
    return figures


def _measure_capacity(plan: GpuPlan, library: SyntheticLibrary) -> Figures:
    """Measure how many searches per second one server process answers."""
    import av  # noqa: F401 (the server needs these packages; without them it would not become ready)
    import fastapi  # noqa: F401
    import uvicorn  # noqa: F401

    from benchmarks.search.server_load import measure_load, running_server

    os.environ["CINESTRATA_QUERY_DEVICE"] = plan.device
    texts = [query.text for query in library.queries[plan.searches :]]
    warm = len(texts) // 4
    with running_server(library.settings) as (url, pid):
        measure_load(url, pid, texts[:warm], plan.clients)
        load = measure_load(url, pid, texts[warm:], plan.clients)
    return {
        "clients": plan.clients,
        "searches_per_second": round(load.rate, 1),
        "server_cpu_ms": round(load.server, 2),
    }
