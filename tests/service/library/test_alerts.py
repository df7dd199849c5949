"""Alerts of domains that have lost recall: raised once, and cleared when the recall recovers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from cinestrata_schemas.library import AlertDetails
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert, Delivery, Webhook
from service.catalog.tables import Recall
from service.core.settings import Settings
from service.library import prometheus_metrics
from service.library.alerts import evaluate_alerts, open_alerts
from service.library.library_status import library_status
from tests.measured_library import add_measured_domains


def shown_alerts() -> list[AlertDetails]:
    """Evaluate the alerts, and list them."""
    evaluate_alerts()
    with session_scope() as session:
        return open_alerts(session, 10)


def set_recall(value: float) -> None:
    """Compute the recall of the second release on the first domain; a new cell marks the change of the matrix."""
    with session_scope(write=True) as session:
        row = session.scalars(select(Recall).where(Recall.release_order == 2, Recall.task_order == 1)).one()
        session.delete(row)
        session.flush()
        facts = {column.key: getattr(row, column.key) for column in Recall.__table__.columns}
        session.add(Recall(**facts | {"id": facts["id"] + 10, "r1": value}))


@pytest.fixture
def two_domains(catalog: Settings) -> None:
    """Two domains of 100 queries; the first was learned with recall@1 of 0.5."""
    cells = {(1, 1): 0.5, (2, 1): 0.5, (2, 2): 0.8}
    add_measured_domains(cells, queries=lambda i, t: 100)


def test_loss_in_a_frozen_shard_raises_one_alert_until_it_recovers(two_domains: None) -> None:
    assert shown_alerts() == []
    set_recall(0.49)  # a loss of 0.01 crosses nothing yet
    assert shown_alerts() == []
    set_recall(0.39)
    (alert,) = shown_alerts()
    assert (alert.kind, alert.task, alert.value) == ("forgetting_local", "domain 1", pytest.approx(0.11))
    assert alert.message == (
        "Domain “domain 1” has lost 11.0 points of recall@1 in its own shard; the threshold is 2.0 points."
    )
    set_recall(0.41)
    (lasting,) = shown_alerts()
    assert (lasting.id, lasting.value) == (alert.id, pytest.approx(0.09)), "of the last round"
    status = library_status()
    assert ([shown.id for shown in status.alerts], status.open_alerts) == ([alert.id], 1)
    assert b'cinestrata_alerts{kind="forgetting_local"} 1.0' in prometheus_metrics.render()[0]
    set_recall(0.5)
    assert shown_alerts() == []


@pytest.mark.parametrize(
    ("mode", "gallery", "is_raised"),
    [
        ("pinned", "local", False),  # ranks in a frozen shard cannot change: only the queries did
        ("pinned", "global", True),
        ("latest", "local", True),
        ("latest", "global", True),
    ],
)
def test_loss_with_changed_queries_raises_an_alert_unless_the_shard_is_frozen(
    sqlite_catalog: Settings, mode: str, gallery: str, is_raised: bool
) -> None:
    for each in ("local", "global"):
        cells = {(1, 1): 0.8, (2, 1): 0.2 if each == gallery else 0.8, (2, 2): 0.8}
        add_measured_domains(cells, mode=mode, gallery=each, queries=lambda i, t: 100 - i)
    assert [alert.kind for alert in shown_alerts()] == ([f"forgetting_{gallery}"] if is_raised else [])


@pytest.mark.parametrize(("queries", "now_found"), [(19, 0.0), (20, 0.3)])
def test_loss_within_chance_raises_no_alert(sqlite_catalog: Settings, queries: int, now_found: float) -> None:
    """Few queries, and a loss among all shards whose interval contains 0."""
    add_measured_domains({(1, 1): 0.5, (2, 1): 0.5, (2, 2): 0.8}, queries=lambda i, t: queries)
    cells = {(1, 1): 0.5, (2, 1): now_found, (2, 2): 0.8}
    add_measured_domains(cells, gallery="global", queries=lambda i, t: queries)
    assert shown_alerts() == []


def test_two_workers_raise_an_alert_once_and_send_one_message(two_domains: None) -> None:
    with session_scope(write=True) as session:
        events = ["alert.raised", "alert.cleared"]
        fields = {"url": "https://example.com/", "secret": "s", "events": events, "enabled": True}
        session.add(Webhook(id="w", created_at=now(session), **fields))
    set_recall(0.2)
    with ThreadPoolExecutor(4) as threads:
        for round_ in [threads.submit(evaluate_alerts) for _ in range(4)]:
            round_.result()
    with session_scope() as session:
        assert len(session.scalars(select(Alert)).all()) == 1
        (message,) = session.scalars(select(Delivery)).all()
    assert (message.event, message.payload["data"]["task_id"]) == ("alert.raised", "t1")
    set_recall(0.5)
    evaluate_alerts()
    with session_scope() as session:
        messages = session.scalars(select(Delivery).order_by(Delivery.id)).all()
    assert [message.event for message in messages] == events
    raised, cleared = (set(message.payload["data"]) for message in messages)
    assert cleared - raised == {"cleared_at"}
    assert cleared == set(AlertDetails.model_fields)
