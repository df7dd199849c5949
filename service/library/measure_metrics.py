"""Prometheus gauges of the measures of the library: recall, forgetting, routing, stage times and GPU memory.

Labels are names of galleries, stages, machines and devices; their number does not grow with the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import select

from cinestrata_schemas.tasks import StageTimes
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import WorkerReport
from service.catalog.tables import Task
from service.catalog.worker_reports import ALIVE
from service.core.errors import Unavailable
from service.library.recall.served_recall import read_served_recall

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
            "Domains none of whose queries find their video first among all videos.",
            value=served.unfound_all_domains if served.recall["global_all"] else served.unfound_domains,
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
    """Memory of the GPUs of running workers, from their reports in the catalog."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield used and total bytes by machine and device; none without a GPU or while the catalog is unreachable."""
        try:
            memory = _newest_gpu_memory()
        except Unavailable:
            return
        labels = ["host", "device"]
        used = GaugeMetricFamily(
            "cinestrata_gpu_memory_used_bytes", "Used memory of a GPU of the workers.", labels=labels
        )
        total = GaugeMetricFamily(
            "cinestrata_gpu_memory_total_bytes", "Memory of a GPU of the workers.", labels=labels
        )
        for (host, device), gpu in sorted(memory.items()):
            used.add_metric([host, str(device)], gpu["used_bytes"])
            total.add_metric([host, str(device)], gpu["total_bytes"])
        yield from (used, total) if memory else ()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing: the registration must not query the database."""
        return iter(())


def _newest_gpu_memory() -> dict[tuple[str, int], dict[str, int]]:
    """The newest report of each device; the workers of a machine report the same devices."""
    with session_scope() as session:
        rows = session.execute(
            select(WorkerReport.name, WorkerReport.gpus)
            .where(WorkerReport.seen_at > now(session) - ALIVE)
            .order_by(WorkerReport.seen_at)
        ).all()
    return {(row.name.partition(":")[0], gpu["device"]): gpu for row in rows for gpu in row.gpus or ()}


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
            seconds.setdefault(stage, []).append(value)
    return {stage: fmean(values) for stage, values in seconds.items()}
