"""Prometheus metrics: requests and search times as they happen; catalog counts and measures at each scrape.

The number of labels does not grow with the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.library import ALERT_KINDS
from cinestrata_schemas.tasks import StageTimes
from service.catalog.column_types import damaged_reads
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import WorkerReport
from service.catalog.tables import ACTIVE_STATES, STATES, Shard, Task
from service.catalog.worker_reports import ALIVE
from service.core.errors import Unavailable
from service.library.alerts import count_open_alerts
from service.library.recall.recall_matrix import read_served_recall

_FINISHED_TASKS = 20  # newest tasks, whose stage times are averaged

REGISTRY = CollectorRegistry()
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REQUESTS = Counter("cinestrata_requests", "HTTP requests.", ["method", "route", "status"], registry=REGISTRY)
REQUEST_SECONDS = Histogram(
    "cinestrata_request_seconds",
    "Time to answer an HTTP request.",
    ["route"],
    buckets=_FAST,
    registry=REGISTRY,
)
SEARCH_SECONDS = Histogram(
    "cinestrata_search_seconds",
    "Time spent in each part of a search: encode, route, search, merge, total.",
    ["stage"],
    buckets=_FAST,
    registry=REGISTRY,
)
RELEASE_PINNED = Gauge(
    "cinestrata_release_pinned", "1 while an earlier release than the newest is searched.", registry=REGISTRY
)
GENERATION = Gauge(
    "cinestrata_generation", "Generation of the index that is being searched.", registry=REGISTRY
)
UNVERIFIED_BYTES = Gauge(
    "cinestrata_unread_bytes",
    "Bytes of searched shards whose checksums were not verified since the process started.",
    registry=REGISTRY,
)


class MeasureCollector(Collector):
    """Measures of the served release, read from the catalog at each scrape."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; none if the library has no measures or the catalog is unreachable."""
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
            "Recall of earlier domains when they were learned, minus the served release's, by gallery.",
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
            "Domains in which no query finds its video first among all videos.",
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
        """Describe nothing: registration must not query the database."""
        return iter(())


class GpuMemoryCollector(Collector):
    """Memory of the GPUs that running workers report to the catalog."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield used and total bytes by machine and device; none without a GPU, or while the catalog is unreachable."""
        try:
            memory = _newest_gpu_memory()
        except Unavailable:
            return
        labels = ["host", "device"]
        used = GaugeMetricFamily(
            "cinestrata_gpu_memory_used_bytes", "Used memory of a worker's GPU.", labels=labels
        )
        total = GaugeMetricFamily(
            "cinestrata_gpu_memory_total_bytes", "Total memory of a worker's GPU.", labels=labels
        )
        for (host, device), gpu in sorted(memory.items()):
            used.add_metric([host, str(device)], gpu["used_bytes"])
            total.add_metric([host, str(device)], gpu["total_bytes"])
        yield from (used, total) if memory else ()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing: registration must not query the database."""
        return iter(())


def _newest_gpu_memory() -> dict[tuple[str, int], dict[str, int]]:
    """Select the newest report of each device; a machine's workers all report the same devices."""
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


class _CatalogCollector(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Count at the scrape, so that every process in a cluster reports the same."""
        up = GaugeMetricFamily("cinestrata_catalog_up", "1 if the catalog database responds.")
        try:
            with session_scope() as session:
                by_state = dict(session.execute(select(Task.state, func.count()).group_by(Task.state)).all())
                active = _count_active_tasks(session)
                shards, vectors, size = session.execute(
                    select(func.count(), func.sum(Shard.count), func.sum(Shard.bytes)).select_from(Shard)
                ).one()
                open_alerts = count_open_alerts(session)
        except Unavailable:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        tasks = GaugeMetricFamily("cinestrata_tasks", "Tasks by state.", labels=["state"])
        for state in STATES:
            tasks.add_metric([state], by_state.get(state, 0))
        yield tasks
        unfinished = GaugeMetricFamily(
            "cinestrata_active_tasks",
            "Unfinished tasks by their next work, probing or learning, and by whether a worker holds their lease.",
            labels=["work", "lease"],
        )
        for labels, count in active.items():
            unfinished.add_metric(labels, count)
        yield unfinished
        alerts = GaugeMetricFamily(
            "cinestrata_alerts", "Domains that have lost recall, by kind.", labels=["kind"]
        )
        for kind in ALERT_KINDS:
            alerts.add_metric([kind], open_alerts.get(kind, 0))
        yield alerts
        yield GaugeMetricFamily("cinestrata_shards", "Published shards.", value=shards)
        yield GaugeMetricFamily("cinestrata_vectors", "Vectors in all shards.", value=int(vectors or 0))
        yield GaugeMetricFamily("cinestrata_shard_bytes", "Bytes of all shards.", value=int(size or 0))

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing: registration must not query the database."""
        return iter(())


def _count_active_tasks(session: Session) -> dict[tuple[str, str], int]:
    """Count the unfinished tasks by work and lease. The state does not tell: a task keeps it when its worker dies."""
    # A task that waits for an unavailable source keeps its lease, too.
    held = func.coalesce(Task.lease_expires_at >= now(session), False)
    conditions = {
        ("probing", "held"): Task.probed_at.is_(None) & held,
        ("probing", "free"): Task.probed_at.is_(None) & ~held,
        ("learning", "held"): Task.probed_at.is_not(None) & held,
        ("learning", "free"): Task.probed_at.is_not(None) & ~held,
    }
    counts = session.execute(
        select(*(func.count().filter(condition) for condition in conditions.values())).where(
            Task.state.in_(ACTIVE_STATES)
        )
    ).one()
    return dict(zip(conditions, counts, strict=True))


class _DamageCollector(Collector):
    def collect(self) -> Iterator[CounterMetricFamily]:
        """Count the damaged values by column."""
        damaged = CounterMetricFamily(
            "cinestrata_catalog_damaged_values",
            "Damaged catalog values that this process has read, by table and column.",
            labels=["column"],
        )
        for column, count in sorted(damaged_reads.items()):
            damaged.add_metric([column], count)
        yield damaged


REGISTRY.register(_CatalogCollector())
REGISTRY.register(_DamageCollector())
REGISTRY.register(MeasureCollector())
REGISTRY.register(GpuMemoryCollector())


def render() -> tuple[bytes, str]:
    """Render the metrics in Prometheus's text format, with their content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
