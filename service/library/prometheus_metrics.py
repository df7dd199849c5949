"""Prometheus metrics: requests and search latency as events, counts of the catalog at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

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

from cinestrata_schemas.alerts import ALERT_KINDS
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert
from service.catalog.tables import ACTIVE_STATES, STATES, Shard, Task
from service.core.errors import Unavailable
from service.library.measure_metrics import GpuMemoryCollector, MeasureCollector

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
    "Bytes of searched shards whose checksums were not verified since the start of the process.",
    registry=REGISTRY,
)


class _CatalogCollector(Collector):
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Count at the scrape, so that every process of a cluster reports the same."""
        up = GaugeMetricFamily("cinestrata_catalog_up", "1 when the catalog database answers.")
        try:
            with session_scope() as session:
                by_state = dict(session.execute(select(Task.state, func.count()).group_by(Task.state)).all())
                active = _count_active_tasks(session)
                shards, vectors, size = session.execute(
                    select(func.count(), func.sum(Shard.count), func.sum(Shard.bytes)).select_from(Shard)
                ).one()
                is_open = Alert.cleared_at.is_(None) & Alert.dismissed_at.is_(None)
                open_alerts = dict(
                    session.execute(
                        select(Alert.kind, func.count()).where(is_open).group_by(Alert.kind)
                    ).all()
                )
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
            "cinestrata_alerts", "Open alerts of crossed thresholds by kind.", labels=["kind"]
        )
        for kind in ALERT_KINDS:
            alerts.add_metric([kind], open_alerts.get(kind, 0))
        yield alerts
        yield GaugeMetricFamily("cinestrata_shards", "Published shards.", value=shards)
        yield GaugeMetricFamily("cinestrata_vectors", "Vectors in all shards.", value=int(vectors or 0))
        yield GaugeMetricFamily("cinestrata_shard_bytes", "Bytes of all shards.", value=int(size or 0))

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Describe nothing: the registration must not query the database."""
        return iter(())


def _count_active_tasks(session: Session) -> dict[tuple[str, str], int]:
    """Number of unfinished tasks by work and lease. The state does not tell: a task whose worker died keeps it."""
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


REGISTRY.register(_CatalogCollector())
REGISTRY.register(MeasureCollector())
REGISTRY.register(GpuMemoryCollector())


def render() -> tuple[bytes, str]:
    """Return the metrics in the text format of Prometheus, and their content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
