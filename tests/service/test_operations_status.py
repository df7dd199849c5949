"""State of the operation: workers, queue, running tasks and searches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import update

from cinestrata_schemas.operations import SearchLoad
from cinestrata_schemas.tasks import TaskDetails
from service.catalog.database import now, session_scope
from service.catalog.leases import process_name, report_worker, sweep_worker_reports
from service.catalog.operation_tables import WorkerReport
from service.catalog.tables import Event
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.operations import operations_status
from service.search.search_load import SearchRate
from service.tasks import lifecycle

IDLE = SearchLoad(seconds=1, searches=0, per_minute=0, p95_seconds=None)


def test_running_and_waiting_tasks_are_shown(
    catalog: Settings, post_probed: Callable[..., TaskDetails]
) -> None:
    first, second = post_probed("a"), post_probed("b")
    claim = lifecycle.claim_training(first.id, "host:7:8")
    assert claim is not None
    claim.advance("training")
    with session_scope(write=True) as session:
        at = now(session)
        for step in range(250):
            data = {
                "stage": "training",
                "fraction": step / 250,
                "loss": 1 / (step + 1),
                "videos_per_second": 2.0,
            }
            session.add(Event(task_id=first.id, at=at + timedelta(seconds=step), kind="progress", data=data))
    status = operations_status(IDLE)
    assert ([task.id for task in status.queue], status.waiting) == ([second.id], 1)
    (running,) = status.running
    assert (running.id, running.state, len(running.points)) == (first.id, "training", 200)
    assert running.points[-1].loss == pytest.approx(1 / 250)
    assert running.points[-1].videos_per_second == 2
    assert [point.at for point in running.points] == sorted(point.at for point in running.points)
    claim.fail("Training diverged.")
    (worker,) = operations_status(IDLE).workers
    assert (worker.name, worker.error) == ("host:7", "Task 'a': Training diverged.")


def test_silent_workers_are_marked_and_forgotten(catalog: Settings) -> None:
    with session_scope(write=True) as session:
        report_worker(session, 123)
        report_worker(session, 456)
    (worker,) = operations_status(IDLE).workers
    assert (worker.name, worker.alive, worker.free_bytes) == (process_name(), True, 456)
    with session_scope(write=True) as session:
        session.execute(update(WorkerReport).values(seen_at=now(session) - timedelta(minutes=2)))
    assert not operations_status(IDLE).workers[0].alive
    with session_scope(write=True) as session:
        session.execute(update(WorkerReport).values(seen_at=now(session) - timedelta(days=2)))
        sweep_worker_reports(session)
    assert operations_status(IDLE).workers == []


def test_search_load_counts_searches_since_the_oldest_sample() -> None:
    prometheus_metrics.SEARCH_SECONDS.labels("total").observe(0.3)  # before the window
    rate = SearchRate()
    assert (rate.read().searches, rate.read().p95_seconds) == (0, None)
    for _ in range(19):
        prometheus_metrics.SEARCH_SECONDS.labels("total").observe(0.004)
    prometheus_metrics.SEARCH_SECONDS.labels("total").observe(9.0)
    load = rate.read()
    assert load.searches == 20
    assert load.p95_seconds == pytest.approx(0.005)
    for _ in range(20):
        prometheus_metrics.SEARCH_SECONDS.labels("total").observe(9.0)
    assert rate.read().p95_seconds == 2.5  # the largest bound of the histogram
