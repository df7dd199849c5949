"""Summary and matrix on the library page, for libraries whose figures are easily misread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from sqlalchemy import delete, update

from service.catalog.database import now, session_scope
from service.catalog.leases import ALIVE, report_worker
from service.catalog.operation_tables import Alert, WorkerReport
from service.catalog.tables import Recall, Task
from service.library.alerts import evaluate_alerts
from service.tasks import broker
from tests.api.browser import refresh_library_page, serve, texts, wait_for, wait_until
from tests.measured_library import add_measured_domains

pytestmark = pytest.mark.slow  # drives a browser


@pytest.fixture
def page(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of the library page; its library is empty before and after the test."""
    monkeypatch.setattr(broker, "is_reachable", lambda: True)  # a fault would be the first advice
    with serve(client.app) as url:
        yield f"{url}/admin"
    with session_scope(write=True) as session:
        for table in (Alert, WorkerReport):
            session.execute(delete(table))
        session.execute(delete(Recall))
        session.execute(delete(Task))


@pytest.fixture(autouse=True)
def no_console_errors(browser: WebDriver) -> Iterator[None]:
    """Fail a test if the page logs an error; the library has no index, so ``/readyz`` answers 503."""
    browser.get_log("browser")
    yield
    logged = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in logged if "/readyz" not in entry["message"]]


def _text(browser: WebDriver, identifier: str) -> str:
    return browser.find_element(By.ID, identifier).text


def _open(browser: WebDriver, page: str) -> None:
    browser.get(page)
    wait_for(browser, "#matrix [data-testid^=cell]", 3)


def test_summary_weighs_queries_and_shows_their_number(browser: WebDriver, page: str) -> None:
    cells = {(1, 1): 0.2, (2, 1): 0.2, (2, 2): 1.0}
    for gallery in ("local", "global", "global_all"):
        scale = 0.5 if gallery == "global_all" else 1
        add_measured_domains(
            {key: scale * r1 for key, r1 in cells.items()},
            gallery=gallery,
            queries=lambda i, t: 120 if t == 1 else 1,
        )
    _open(browser, page)
    note = _text(browser, "learned-note")
    assert "Of 121 held-out queries" in note
    assert "21 % in its own shard" in note
    assert "among all shards" in note
    assert "10 % among all videos." in note
    assert "fewer than 20 queries" in _text(browser, "matrix-note")
    assert texts(browser, "[data-testid^=cell-2]") == ["20.0", "100.0*"]


def test_library_with_alerts_failures_or_dead_workers_is_not_healthy(browser: WebDriver, page: str) -> None:
    for gallery in ("local", "global"):
        add_measured_domains(
            {(1, 1): 0.9, (2, 1): 0.1, (2, 2): 0.9}, gallery=gallery, queries=lambda i, t: 40
        )
    with session_scope(write=True) as session:
        report_worker(session, None)
    _open(browser, page)
    wait_until(browser, lambda b: _text(b, "healthy") == "Good")
    assert "1 worker, no task in progress" in _text(browser, "healthy-note")
    evaluate_alerts()
    refresh_library_page(browser)
    wait_until(browser, lambda b: _text(b, "healthy") == "2 alerts")
    with session_scope(write=True) as session:
        session.execute(update(Task).where(Task.id == "t2").values(state="failed", finished_at=now(session)))
        session.execute(update(WorkerReport).values(seen_at=now(session) - ALIVE))
    refresh_library_page(browser)
    wait_until(browser, lambda b: _text(b, "healthy").startswith("2 faults"))
    assert "No worker is running" in _text(browser, "healthy-note")
    assert "Start a worker" in _text(browser, "advice")
