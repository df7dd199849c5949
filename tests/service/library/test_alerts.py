"""Alerts of crossed thresholds: raised once, cleared below a lower value, dismissed, off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from math import inf

import pytest
from sqlalchemy import select, update

from cinestrata_schemas.webhooks import AlertFacts
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert, Delivery, Webhook
from service.catalog.tables import Recall, Task
from service.core.settings import Settings
from service.library import alerts, prometheus_metrics
from service.library.alerts import dismiss_alert, evaluate_alerts, list_alerts, sweep_alerts
from service.library.library_status import library_status
from service.library.recall.recall_matrix import read_served_recall
from tests.measured_library import add_measured_domains, first_hits

OFF = {"forgetting_local": inf, "forgetting_global": inf, "recall_when_learned": 0.0, "failed_tasks": inf}


@pytest.fixture(autouse=True)
def thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds of this test."""
    monkeypatch.setattr(alerts, "THRESHOLDS", dict(alerts.THRESHOLDS))


def enable(**thresholds: float) -> None:
    """Set these thresholds, and turn the alerts of the other kinds off."""
    alerts.THRESHOLDS.update({**OFF, **thresholds})  # type: ignore[attr-defined]


def open_kinds() -> list[str]:
    evaluate_alerts()
    return [alert.kind for alert in list_alerts().open]


def set_recall(value: float) -> None:
    """Compute the recall of the second release on the first domain; a new cell marks the change of the matrix."""
    with session_scope(write=True) as session:
        row = session.scalars(select(Recall).where(Recall.release_order == 2, Recall.task_order == 1)).one()
        session.delete(row)
        session.flush()
        facts = {column.key: getattr(row, column.key) for column in Recall.__table__.columns}
        outcomes = first_hits(value, row.queries)
        session.add(Recall(**facts | {"id": facts["id"] + 10, "r1": value, "first_hits": outcomes}))


@pytest.fixture
def two_domains(catalog: Settings) -> None:
    """Two domains of 100 queries; the first was learned with recall@1 of 0.5."""
    cells = {(1, 1): 0.5, (2, 1): 0.5, (2, 2): 0.8}
    add_measured_domains(cells, queries=lambda i, t: 100)


def test_loss_raises_one_alert_and_clears_it_below_four_fifths(two_domains: None) -> None:
    enable(forgetting_local=0.1)
    assert open_kinds() == []
    set_recall(0.41)  # a loss of 0.09 crosses nothing yet
    assert open_kinds() == []
    set_recall(0.39)
    assert open_kinds() == ["forgetting_local"]
    (alert,) = list_alerts().open
    assert (alert.value, alert.threshold) == (pytest.approx(0.11), 0.1)
    assert alert.message == (
        "Domain “domain 1” has lost 11.0 points of recall@1 in its own shard; the threshold is 10.0 points."
    )
    for recall in (0.41, 0.39, 0.415):  # around the threshold
        set_recall(recall)
        assert open_kinds() == ["forgetting_local"]
    (lasting,) = list_alerts().open
    assert (lasting.id, lasting.value) == (alert.id, pytest.approx(0.085)), (
        "the value is that of the last round"
    )
    assert "lost 8.5 points" in lasting.message
    set_recall(0.43)
    assert open_kinds() == []
    assert [(a.id, a.cleared_at is not None) for a in list_alerts().earlier] == [(alert.id, True)]


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
    cells = {(1, 1): 0.8, (2, 1): 0.2, (2, 2): 0.8}
    for each in ("local", "global"):
        add_measured_domains(cells, mode=mode, gallery=each, queries=lambda i, t: 100 - i)
    enable(**{f"forgetting_{gallery}": 0.1})
    assert (open_kinds() == [f"forgetting_{gallery}"]) is is_raised


def test_loss_of_few_queries_raises_no_alert(sqlite_catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.5, (2, 1): 0.0, (2, 2): 0.8}, queries=lambda i, t: 19)
    enable(forgetting_local=0.1, recall_when_learned=1)
    assert open_kinds() == []


def test_unrelated_domain_does_not_clear_an_alert(sqlite_catalog: Settings) -> None:
    """The newest domain becomes an earlier one with the next, without a loss."""
    for newest in range(2, 6):
        cells = {(newest, t): 0.9 if t > 1 else 0.5 for t in range(1, newest + 1)}
        add_measured_domains(cells | ({(1, 1): 0.9} if newest == 2 else {}), queries=lambda i, t: 50)
        enable(forgetting_local=0.3)
        assert open_kinds() == ["forgetting_local"], f"with {newest} domains"
    loss = read_served_recall().loss["local"]
    assert loss is not None
    assert loss.loss == pytest.approx(0.1), "over four earlier domains"
    (alert,) = list_alerts().open
    assert (alert.task, alert.value) == ("domain 1", pytest.approx(0.4))
    enable(forgetting_local=0.45)
    assert open_kinds() == ["forgetting_local"]  # above four fifths
    assert "the threshold is 45.0 points" in list_alerts().open[0].message


def test_loss_that_is_not_significant_raises_no_alert(sqlite_catalog: Settings) -> None:
    add_measured_domains({(1, 1): 0.5, (2, 1): 0.48, (2, 2): 0.8}, queries=lambda i, t: 50)  # one query
    enable(forgetting_local=0.01)
    assert open_kinds() == []


def test_loss_without_outcomes_is_compared_as_independent_shares(sqlite_catalog: Settings) -> None:
    cells = {(1, 1): 0.5, (2, 1): 0.4, (2, 2): 0.8}
    add_measured_domains(cells, queries=lambda i, t: 50, has_outcomes=False)
    enable(forgetting_local=0.05)
    assert open_kinds() == []  # 5 of 50 queries would be enough on the same queries
    set_recall(0.1)
    assert open_kinds() == ["forgetting_local"]


def test_low_recall_is_reported_once_for_each_domain(two_domains: None) -> None:
    enable(recall_when_learned=0.9)
    assert open_kinds() == ["recall_when_learned", "recall_when_learned"]
    first = list_alerts().open[-1]
    assert (first.task_id, first.task, first.value) == ("t1", "domain 1", 0.5)
    assert first.message.startswith("Domain “domain 1” was learned with recall@1 of 50.0 %")
    dismiss_alert(first.id)
    assert open_kinds() == ["recall_when_learned"]  # the dismissed alert is not raised again
    enable(recall_when_learned=0.4)
    assert open_kinds() == []
    enable(recall_when_learned=0.9)
    assert len(open_kinds()) == 2


def test_failed_tasks_raise_an_alert_at_the_threshold(two_domains: None) -> None:
    enable(failed_tasks=2)
    with session_scope(write=True) as session:
        session.execute(update(Task).where(Task.id == "t1").values(state="failed"))
    assert open_kinds() == []
    with session_scope(write=True) as session:
        session.execute(update(Task).where(Task.id == "t2").values(state="failed"))
    assert open_kinds() == ["failed_tasks"]
    assert list_alerts().open[0].message == "2 tasks have failed; the threshold is 2."
    assert b'cinestrata_alerts{kind="failed_tasks"} 1.0' in prometheus_metrics.render()[0]
    status = library_status()
    assert ([alert.kind for alert in status.alerts], status.open_alerts) == (["failed_tasks"], 1)
    enable()
    assert open_kinds() == []


def test_two_workers_raise_an_alert_once_and_send_one_message(two_domains: None) -> None:
    enable(recall_when_learned=0.6)
    with session_scope(write=True) as session:
        events = ["alert.raised", "alert.cleared"]
        fields = {"url": "https://example.com/", "secret": "s", "events": events, "enabled": True}
        session.add(Webhook(id="w", created_at=now(session), **fields))
    with ThreadPoolExecutor(4) as threads:
        for round_ in [threads.submit(evaluate_alerts) for _ in range(4)]:
            round_.result()
    with session_scope() as session:
        assert len(session.scalars(select(Alert)).all()) == 1
        (message,) = session.scalars(select(Delivery)).all()
    assert (message.event, message.payload["data"]["task_id"]) == ("alert.raised", "t1")
    enable()
    evaluate_alerts()
    with session_scope() as session:
        messages = session.scalars(select(Delivery).order_by(Delivery.id)).all()
    assert [message.event for message in messages] == events
    raised, cleared = (set(message.payload["data"]) for message in messages)
    assert cleared - raised == {"cleared_at"}
    assert cleared == set(AlertFacts.model_fields)


def test_old_cleared_alerts_are_removed(two_domains: None) -> None:
    enable(recall_when_learned=0.6)
    evaluate_alerts()
    enable()
    evaluate_alerts()
    sweep_alerts()
    assert len(list_alerts().earlier) == 1
    with session_scope(write=True) as session:
        session.execute(update(Alert).values(cleared_at=now(session) - timedelta(days=91)))
    sweep_alerts()
    assert list_alerts().earlier == []
