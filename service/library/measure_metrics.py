"""Prometheus gauges of the measures of the library: recall, forgetting, routing, stage times and GPU memory.

Labels are names of galleries, stages and devices; their number does not grow with the library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from statistics import fmean

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import select

from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import Unavailable
from service.core.schemas import StageTimes
from service.library.recall.served_recall import read_served_recall
from service.tasks.estimates.task_estimator import STAGES

__all__ = ["GpuMemoryCollector", "MeasureCollector"]

_FINISHED_TASKS = 20  # newest tasks whose stage times are averaged


class MeasureCollector(Collector):
    """Measures of the served release, from the catalog at each scrape."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; none of a library without measures, and none while the catalog is unreachable."""
        try:
            served = read_served_recall()
            seconds = _mean_stage_seconds()
        except Unavailable:
            return
        recall = GaugeMetricFamily(
            "cinestrata_recall",
            "Share of queries that find the right video first, by gallery.",
            labels=["gallery"],
        )
        queries = GaugeMetricFamily(
            "cinestrata_recall_queries", "Queries of the measured recall, by gallery.", labels=["gallery"]
        )
        for gallery, share in served.recall.items():
            if share is not None:
                recall.add_metric([gallery], share.share)
                queries.add_metric([gallery], share.queries)
        forgetting = GaugeMetricFamily(
            "cinestrata_forgetting",
            "Recall of earlier domains when they were learned, minus that of the served release, by gallery.",
            labels=["gallery"],
        )
        for gallery, loss in served.loss.items():
            if loss is not None:
                forgetting.add_metric([gallery], loss.loss)
        yield from (recall, queries, forgetting)
        if served.router_accuracy is not None:
            yield GaugeMetricFamily(
                "cinestrata_router_accuracy",
                "Share of queries whose domain the router ranks first.",
                value=served.router_accuracy.share,
            )
        yield GaugeMetricFamily(
            "cinestrata_unfound_domains",
            "Domains none of whose queries find their video.",
            value=served.unfound_domains,
        )
        stages = GaugeMetricFamily(
            "cinestrata_stage_seconds",
            f"Mean seconds of a stage, over the newest {_FINISHED_TASKS} finished tasks.",
            labels=["stage"],
        )
        for stage, value in seconds.items():
            stages.add_metric([stage], value)
        yield stages

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing: the registration must not query the database."""
        return iter(())


class GpuMemoryCollector(Collector):
    """Memory of the GPUs of this machine, where this process uses one; workers on the same machine are included."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield used and total bytes by device."""
        torch = sys.modules.get("torch")  # a process that has not imported torch uses no GPU
        if torch is None or not torch.cuda.is_available():
            return
        used = GaugeMetricFamily(
            "cinestrata_gpu_memory_used_bytes", "Used memory of a GPU.", labels=["device"]
        )
        total = GaugeMetricFamily("cinestrata_gpu_memory_total_bytes", "Memory of a GPU.", labels=["device"])
        for device in range(torch.cuda.device_count()):
            free_bytes, total_bytes = torch.cuda.mem_get_info(device)
            used.add_metric([str(device)], total_bytes - free_bytes)
            total.add_metric([str(device)], total_bytes)
        yield from (used, total)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing: the registration must not open a device."""
        return iter(())


def _mean_stage_seconds() -> dict[str, float]:
    with session_scope() as session:
        progresses = session.scalars(
            select(Task.progress)
            .where(Task.state == "ready")
            .order_by(Task.finished_at.desc())
            .limit(_FINISHED_TASKS)
        ).all()
    seconds: dict[str, list[float]] = {}
    for times in filter(None, map(StageTimes.of, progresses)):
        for stage, value in times.seconds.items():
            if stage in STAGES and value is not None:
                seconds.setdefault(stage, []).append(value)
    return {stage: fmean(values) for stage, values in seconds.items()}
