"""Prometheus metrics: requests and search times as they happen; catalog counts and measures at each scrape.

The number of labels does not grow with the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.library import ALERT_KINDS
from service.catalog.database import now, session_scope
from service.catalog.leases import ALIVE
from service.catalog.operation_tables import WorkerReport
from service.catalog.tables import ACTIVE_STATES, STATES, Shard, Task
from service.core.errors import Unavailable
from service.library.alerts import count_open_alerts
from service.library.recall_matrix import read_served_recall

REGISTRY = CollectorRegistry()
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REQUESTS = Counter("cinestrata_requests", "HTTP requests.", ["method", "route", "status"], registry=REGISTRY)
_histogram = partial(Histogram, buckets=_FAST, registry=REGISTRY)
_process_gauge = partial(Gauge, registry=REGISTRY)
REQUEST_SECONDS = _histogram("cinestrata_request_seconds", "Time to answer an HTTP request.", ["route"])
SEARCH_SECONDS = _histogram(
    "cinestrata_search_seconds",
    "Time spent in each part of a search: encode, route, search, merge, total.",
    ["stage"],
)
RELEASE_PINNED = _process_gauge(
    "cinestrata_release_pinned", "1 while an earlier release than the newest is searched."
)
GENERATION = _process_gauge("cinestrata_generation", "Generation of the index that is being searched.")
UNVERIFIED_BYTES = _process_gauge(
    "cinestrata_unread_bytes",
    "Bytes of searched shards whose checksums were not verified since the process started.",
)


class _CatalogCollector(Collector):
    """What the catalog knows, read at each scrape, so that every process in a cluster reports the same."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; only ``cinestrata_catalog_up`` while the catalog is unreachable."""
        try:
            gauges = [*_count_gauges(), *_measure_gauges(), *_gpu_gauges()]
        except Unavailable:
            gauges = []
        yield GaugeMetricFamily("cinestrata_catalog_up", "1 if the catalog database responds.", bool(gauges))
        yield from gauges

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing: registration must not query the database."""
        return iter(())


REGISTRY.register(_CatalogCollector())


def _gauge(name: str, text: str, labels: str, values: Mapping[Any, float]) -> GaugeMetricFamily:
    """Create a gauge from values by label, or by a tuple of several labels (names separated by spaces)."""
    gauge = GaugeMetricFamily(f"cinestrata_{name}", text, labels=labels.split())
    for key, value in values.items():
        gauge.add_metric([key] if isinstance(key, str) else key, value)
    return gauge


def _count_gauges() -> Iterator[GaugeMetricFamily]:
    with session_scope() as session:
        by_state = dict(session.execute(select(Task.state, func.count()).group_by(Task.state)).all())
        active = _count_active_tasks(session)
        shards, vectors, size = session.execute(
            select(func.count(), func.sum(Shard.count), func.sum(Shard.bytes)).select_from(Shard)
        ).one()
        alerts = count_open_alerts(session)
    yield _gauge("tasks", "Tasks by state.", "state", dict.fromkeys(STATES, 0) | by_state)
    yield _gauge(
        "active_tasks",
        "Unfinished tasks by their next work, probing or learning, and by whether a worker holds their lease.",
        "work lease",
        active,
    )
    yield _gauge(
        "alerts",
        "Domains that have lost recall, by kind.",
        "kind",
        dict.fromkeys(map(str, ALERT_KINDS), 0) | alerts,
    )
    yield GaugeMetricFamily("cinestrata_shards", "Published shards.", shards)
    yield GaugeMetricFamily("cinestrata_vectors", "Vectors in all shards.", int(vectors or 0))
    yield GaugeMetricFamily("cinestrata_shard_bytes", "Bytes of all shards.", int(size or 0))


def _measure_gauges() -> Iterator[GaugeMetricFamily]:
    served = read_served_recall()
    recall = {gallery: share for gallery, share in served.recall.items() if share is not None}
    yield _gauge(
        "recall",
        "Share of queries that find the right video first, by gallery.",
        "gallery",
        {gallery: share.share for gallery, share in recall.items()},
    )
    yield _gauge(
        "recall_queries",
        "Queries of the measured recall, by gallery.",
        "gallery",
        {gallery: share.queries for gallery, share in recall.items()},
    )
    yield _gauge(
        "forgetting",
        "Recall of earlier domains when they were learned, minus the served release's, by gallery.",
        "gallery",
        {gallery: loss.loss for gallery, loss in served.loss.items() if loss is not None},
    )
    if served.router_accuracy is not None:
        yield GaugeMetricFamily(
            "cinestrata_router_accuracy",
            "Share of queries whose domain the router ranks first.",
            served.router_accuracy.share,
        )
    yield GaugeMetricFamily(
        "cinestrata_unfound_domains",
        "Domains in which no query finds its video first among all videos.",
        served.unfound_all_domains if served.recall["global_all"] else served.unfound_domains,
    )


def _gpu_gauges() -> Iterator[GaugeMetricFamily]:
    """Yield the newest report of each device; a machine's workers all report the same devices."""
    with session_scope() as session:
        rows = session.execute(
            select(WorkerReport.name, WorkerReport.gpus)
            .where(WorkerReport.seen_at > now(session) - ALIVE)
            .order_by(WorkerReport.seen_at)
        ).all()
    memory = {(row.name.partition(":")[0], str(gpu["device"])): gpu for row in rows for gpu in row.gpus or ()}
    for field in ("used", "total") if memory else ():
        values = {labels: gpu[f"{field}_bytes"] for labels, gpu in sorted(memory.items())}
        text = f"{field.capitalize()} memory of a worker's GPU."
        yield _gauge(f"gpu_memory_{field}_bytes", text, "host device", values)


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


def render() -> tuple[bytes, str]:
    """Render the metrics in Prometheus's text format, with their content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
