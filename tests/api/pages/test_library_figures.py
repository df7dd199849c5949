"""Summary and matrix of the library page: figures that are easily misread, then many domains, in a real browser."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from sqlalchemy import delete, update

from cinestrata_schemas.library import UncaptionedDomain
from service.catalog.database import now, session_scope
from service.catalog.leases import ALIVE, report_worker
from service.catalog.operation_tables import Alert, Sync, WorkerReport
from service.catalog.tables import Recall, Shard, Task, Video
from service.library.alerts import evaluate_alerts
from service.tasks import broker
from tests.api.browser import find, refresh_library_page, serve, texts, wait_for, wait_until
from tests.catalog_rows import add_release_and_shard
from tests.measured_library import add_measured_domains

pytestmark = pytest.mark.slow  # drives a browser


@pytest.fixture
def recall_page(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of the library page; its library is empty before and after the test."""
    monkeypatch.setattr(broker, "is_reachable", lambda: True)  # a fault would be the first advice
    with serve(client.app) as url:
        yield f"{url}/admin"
    with session_scope(write=True) as session:
        for table in (Alert, WorkerReport):
            session.execute(delete(table))
        session.execute(delete(Recall))
        session.execute(delete(Task))


def _text(browser: WebDriver, identifier: str) -> str:
    return browser.find_element(By.ID, identifier).text


def _open(browser: WebDriver, recall_page: str) -> None:
    browser.get(recall_page)
    wait_for(browser, "#matrix [data-testid^=cell]", 3)


def test_summary_weighs_queries_and_shows_their_number(browser: WebDriver, recall_page: str) -> None:
    cells = {(1, 1): 0.2, (2, 1): 0.2, (2, 2): 1.0}
    for gallery in ("local", "global", "global_all"):
        scale = 0.5 if gallery == "global_all" else 1
        add_measured_domains(
            {key: scale * r1 for key, r1 in cells.items()},
            gallery=gallery,
            queries=lambda i, t: 120 if t == 1 else 1,
        )
    _open(browser, recall_page)
    note = _text(browser, "learned-note")
    assert "Of 121 held-out queries" in note
    assert "21 % in its own shard" in note
    assert "among all shards" in note
    assert "10 % among all videos." in note
    assert "fewer than 20 queries" in _text(browser, "matrix-note")
    assert texts(browser, "[data-testid^=cell-2]") == ["20.0", "100.0*"]


def test_captions_are_advised_for_a_domain_that_mostly_lacks_them(
    browser: WebDriver, recall_page: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_measured_domains({(1, 1): 0.9}, gallery="local", queries=lambda i, t: 40)
    with session_scope(write=True) as session:
        session.execute(update(Task).values(trained=False))
    browser.get(recall_page)
    wait_until(browser, lambda b: _text(b, "advice") == "Nothing. Everything is in order.")
    assert "had a caption; captions added since are searched, but not learned" in _text(browser, "tasks")
    bare = UncaptionedDomain(task_id="t1", task="harbor", videos=4, uncaptioned=3)
    service = client.app.state.query_service  # type: ignore[attr-defined]
    monkeypatch.setattr(service, "find_uncaptioned", lambda: bare)
    refresh_library_page(browser)
    expected = "Add captions to “harbor”: 3 of its 4 videos have none. They improve search most."
    wait_until(browser, lambda b: _text(b, "advice") == expected)
    assert (find(browser, "#advice-action a").get_attribute("href") or "").endswith("/domains/t1")


def test_library_with_alerts_failures_or_dead_workers_is_not_healthy(
    browser: WebDriver, recall_page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gallery in ("local", "global"):
        add_measured_domains(
            {(1, 1): 0.9, (2, 1): 0.1, (2, 2): 0.9}, gallery=gallery, queries=lambda i, t: 40
        )
    with session_scope(write=True) as session:
        report_worker(session, None)
    _open(browser, recall_page)
    wait_until(browser, lambda b: _text(b, "healthy") == "Good")
    assert "1 worker, no task in progress" in _text(browser, "healthy-note")
    evaluate_alerts()
    refresh_library_page(browser)
    wait_until(browser, lambda b: _text(b, "healthy") == "2 alerts")
    monkeypatch.setattr("service.library.library_status._loaded_at", float("-inf"))
    with session_scope(write=True) as session:
        session.execute(update(Task).where(Task.id == "t2").values(state="failed", finished_at=now(session)))
        session.execute(update(WorkerReport).values(seen_at=now(session) - ALIVE))
    refresh_library_page(browser)
    wait_until(browser, lambda b: _text(b, "healthy").startswith("2 faults"))
    assert "No worker is running" in _text(browser, "healthy-note")
    assert "Start the workers: cinestrata worker --queue cpu, and --queue gpu." in _text(browser, "advice")


DOMAINS = 70
CELLS = "#matrix [data-testid]"


@pytest.fixture(scope="module")
def large(client: TestClient) -> Iterator[str]:
    """URL of a library of 70 measured domains, the last without captions, whose index is missing."""
    orders = range(1, DOMAINS + 1)
    for gallery, best in (("local", 0.9), ("global", 0.7)):
        cells = {
            (release, task): best - 0.005 * (release - task) if release else 0.1
            for task in orders[:-1]
            for release in (0, *orders[task - 1 :])
        }
        add_measured_domains(cells, gallery=gallery, queries=lambda i, t: 20 + t)
    for order in orders:
        shard = Shard(id=f"s{order}", release_id=f"r{order}", fingerprint="f", count=5, dim=8, bytes=1)
        add_release_and_shard(f"t{order}", shard, order=order)
    with session_scope(write=True) as session:
        for task in session.query(Task).filter(Task.learned_order % 8 == 3):
            task.name = f"pottery {task.learned_order}"
    with serve(client.app) as url:
        yield f"{url}/admin"


@pytest.fixture(autouse=True)
def no_console_errors(browser: WebDriver) -> Iterator[None]:
    """Fail a test if a page logs an error; the missing index makes readiness, searches and query reports answer 503."""
    browser.get_log("browser")
    yield
    logged = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [entry for entry in logged if not re.search(r"/readyz|/search\?|/queries\?", entry["message"])]


@pytest.fixture
def page(browser: WebDriver, large: str) -> WebDriver:
    """The loaded library page."""
    browser.get(large)
    wait_for(browser, CELLS, 100)
    return browser


def _rows(browser: WebDriver) -> list[str]:
    return texts(browser, "#matrix tbody th")


def _press(browser: WebDriver, pager: str, name: str) -> None:
    css = f"#{pager}-pager [aria-label='{name}']"
    browser.execute_script("arguments[0].click()", find(browser, css))


def test_matrix_is_paged_by_domains_and_releases(page: WebDriver, client: TestClient) -> None:
    complete = client.get("/forgetting", params={"rows": DOMAINS}).json()
    assert _rows(page) == ["nothing (zero-shot)", "its own release"] + [
        f"{number} {complete['after'][number - 1]}" for number in range(51, 71)
    ]
    assert texts(page, "#matrix thead th")[1:] == complete["tasks"][:20]
    learned = [f"{100 * share:.1f}" for share in complete["learned"]["local"][:20]]
    assert texts(page, "[data-testid^=learned]") == learned
    assert [find(page, f"#{axis}-window").text for axis in ("domain", "release")] == [
        f"Domains 1–20 of {complete['domains']}",
        "Releases 51–70 of 70",
    ]
    assert "at most 64 others, evenly spaced" in find(page, "#matrix-note").text
    _press(page, "release", "Earlier releases")
    wait_until(page, lambda b: _rows(b)[2].startswith("31 "))
    _press(page, "domain", "Later domains")
    wait_until(page, lambda b: texts(b, "#matrix thead th")[1:] == complete["tasks"][20:40])
    shown = [f"{100 * share:.1f}" for share in complete["matrix_local"][49][20:40] if share is not None]
    assert texts(page, "[data-testid^=cell-50-]") == shown
    page.execute_script("document.querySelector('[data-gallery=global]').click()")
    shown = [f"{100 * share:.1f}" for share in complete["matrix_global"][49][20:40] if share is not None]
    wait_until(page, lambda b: texts(b, "[data-testid^=cell-50-]") == shown)
    assert not texts(page, "#time-legend li"), "no lines of 70 domains"


def test_matrix_is_downloaded_as_csv(page: WebDriver, client: TestClient) -> None:
    page.execute_script(
        "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.csv = text }); return '#csv' }"
    )
    page.execute_script("document.getElementById('matrix-csv').click()")
    text = wait_until(page, lambda b: b.execute_script("return window.csv"))
    rows = list(csv.DictReader(text.splitlines()))
    complete = client.get("/forgetting", params={"rows": DOMAINS}).json()
    assert len(rows) == sum(share is not None for row in complete["matrix_local"] for share in row)
    assert rows[0] == {
        "release": "1",
        "after": complete["after"][0],
        "domain": complete["tasks"][0],
        "recall_at_1": str(complete["matrix_local"][0][0]),
        "queries": str(complete["queries"][0][0]),
    }


def test_domains_are_searched_and_paged(page: WebDriver, client: TestClient) -> None:
    names = [task["name"] for task in reversed(client.get("/tasks").json())]
    assert texts(page, "#tasks .name") == names[:10]
    pager = find(page, "[aria-label='Pages of domains']")
    following = pager.find_element(By.XPATH, ".//button[.='Next']")
    page.execute_script("arguments[0].click()", following)
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[10:20])
    assert "Page 2" in pager.text
    page.execute_script("arguments[0].click()", pager.find_element(By.XPATH, ".//button[.='Previous']"))
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[:10])
    search = find(page, "#tasks-text")
    search.send_keys("POTTERY")
    wanted = [name for name in names if name.startswith("pottery")]
    wait_until(page, lambda b: texts(b, "#tasks .name") == wanted)
    assert not pager.is_displayed()
    search.send_keys(Keys.HOME, "11 ")
    wait_until(page, lambda b: texts(b, "#tasks .name") == ["pottery 11"])
    search.send_keys(" %_")
    wait_until(page, lambda b: "No domain matches" in find(b, "#tasks-none").text)
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.BACKSPACE)
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[:10])
    page.execute_script("document.querySelector('[data-state=failed]').click()")
    wait_until(page, lambda b: find(b, "#tasks-none").text == "No domain is in this state.")


def test_shards_and_releases_are_paged(page: WebDriver) -> None:
    wait_for(page, "#shards tbody tr", 10)
    first = texts(page, "#releases tbody tr td:nth-child(2)")
    pager = find(page, "[aria-label='Pages of releases']")
    page.execute_script("arguments[0].click()", pager.find_element(By.XPATH, ".//button[.='Next']"))
    wait_until(page, lambda b: set(texts(b, "#releases tbody tr td:nth-child(2)")).isdisjoint(first))
    assert len(texts(page, "#releases tbody tr")) == 10


def test_older_domains_are_folded_before_a_search(browser: WebDriver, client: TestClient, large: str) -> None:
    names = [task["name"] for task in client.get("/tasks").json()]
    browser.get(large.removesuffix("/admin"))
    wait_for(browser, "#domains button", 41)
    assert [text for text in texts(browser, "#domains button") if text] == ["All domains", *names[-8:]]
    chips, field = (find(browser, css).rect for css in ("#domains", "#domain-text"))
    assert chips["y"] + chips["height"] <= field["y"], "long names get whole rows"
    assert find(browser, "#other-domains").text == "32 more domains"
    find(browser, "#other-domains").click()
    assert [text for text in texts(browser, "#domains button") if text] == ["All domains", *names[-40:]]
    assert browser.execute_script("return document.activeElement.dataset.task") == names[-40]


def test_long_lists_of_the_library_page_are_bounded(page: WebDriver) -> None:
    with session_scope(write=True) as session:
        at = now(session)
        for number in range(10, 35):
            name = f"folder {number}"
            sync = Sync(id=name, name=name, source="/", every_seconds=60, vanished="keep")
            sync.captions_from_names, sync.created_at, sync.next_run_at = False, at, at
            sync.error = "The folder is missing." if number == 30 else None
            session.add(sync)
        failed = Task(id="f", position=999, name="failed", method="strata", state="failed", created_at=at)
        failed.progress, failed.counts = {"stage": "failed"}, {"rejected": 30}
        for number in range(30):
            uri = f"{number}.mp4"
            failed.videos.append(Video(id=uri, uri=uri, status="rejected", reason="empty"))
        session.add(failed)
    evaluate_alerts()
    refresh_library_page(page)
    names = [f"folder {number}" for number in (30, *range(10, 30))]
    wait_until(page, lambda b: texts(b, "#syncs .badge") == names[:10])
    page.execute_script("document.querySelector('[aria-label$=folders] button:last-child').click()")
    wait_until(page, lambda b: texts(b, "#syncs .badge") == names[10:20])
    wait_until(page, lambda b: texts(b, "#tasks .rejects li")[9:] == ["9.mp4 empty", "and 20 more videos"])
    requests = page.execute_script("return performance.getEntriesByType('resource').map(({name}) => name)")
    assert len([path for path in requests if "status=rejected" in path]) == 1
    assert len([text for text in texts(page, ".op-notice") if text]) == 3
    with session_scope() as session:
        assert find(page, "#notices summary").text == f"{session.query(Alert).count() - 3} more alerts"
    page.execute_script("document.querySelector('#notices details').open = true")
    assert all(texts(page, ".op-notice"))
