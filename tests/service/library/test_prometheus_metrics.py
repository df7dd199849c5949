"""Gauges of the measures: values of the served release, bounded labels, silence without measures."""

from __future__ import annotations

from datetime import timedelta

import pytest

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import WorkerReport
from service.core.settings import Settings
from service.library.prometheus_metrics import REGISTRY
from tests.measured_library import add_measured_domains

MEASURES = ("recall", "forgetting", "router_accuracy", "unfound_domains")


def _samples(*names: str) -> dict[tuple[str, ...], float]:
    """Return the values of gauges whose names begin with these, by name and labels."""
    prefixes = tuple(f"cinestrata_{name}" for name in names)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name.startswith(prefixes)
    }


def test_gauges_are_those_of_the_served_release(catalog: Settings) -> None:
    assert _samples(*MEASURES, "gpu_memory") == {("cinestrata_unfound_domains",): 0}, "an empty library"
    cells = {(1, 1): 0.8, (2, 1): 0.5, (2, 2): 0.9}
    add_measured_domains(cells, queries=lambda i, t: 100)
    add_measured_domains(cells, gallery="global", queries=lambda i, t: 100)
    samples = _samples(*MEASURES)
    assert samples["cinestrata_recall", "local"] == pytest.approx(0.7)
    assert samples["cinestrata_recall_queries", "local"] == 200
    assert samples["cinestrata_forgetting", "local"] == pytest.approx(0.3)
    assert samples["cinestrata_router_accuracy",] == pytest.approx(0.7)
    assert samples["cinestrata_unfound_domains",] == 0


def test_number_of_series_does_not_grow_with_the_library(sqlite_catalog: Settings) -> None:
    add_measured_domains({(i, t): 0.5 for i in range(1, 4) for t in range(1, i + 1)})
    few = len(_samples(*MEASURES))
    add_measured_domains({(i, t): 0.5 for i in range(4, 30) for t in range(1, i + 1)})
    assert len(_samples(*MEASURES)) == few


def test_gpu_memory_is_that_of_running_workers(catalog: Settings) -> None:
    gpus = [{"device": n, "used_bytes": used, "total_bytes": 100} for n, used in enumerate((90, 5))]
    with session_scope(write=True) as session:
        at = now(session)
        for name, age, reported in (
            ("trainer:1", 30, [{"device": 0, "used_bytes": 1, "total_bytes": 100}]),
            ("trainer:2", 10, gpus),
            ("stopped:1", 120, gpus),
            ("without:1", 10, None),
        ):
            session.add(WorkerReport(name=name, seen_at=at - timedelta(seconds=age), gpus=reported))
    assert _samples("gpu_memory") == {
        ("cinestrata_gpu_memory_used_bytes", "trainer", "0"): 90,
        ("cinestrata_gpu_memory_used_bytes", "trainer", "1"): 5,
        ("cinestrata_gpu_memory_total_bytes", "trainer", "0"): 100,
        ("cinestrata_gpu_memory_total_bytes", "trainer", "1"): 100,
    }
