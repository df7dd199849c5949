"""The library page with many domains: paged matrix, search, and polling for changes."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from service.core.settings import Settings
from tests.api.browser import serve, texts, wait_for, wait_for_texts, wait_until
from tests.api.library_filling import fill_library

pytestmark = pytest.mark.slow  # drives a browser

DOMAINS = 60
CELLS = "#matrix [data-testid]"


@pytest.fixture(scope="module")
def large(configured: Settings, client: TestClient) -> Iterator[str]:
    """URL of a library of 60 measured domains, whose index is missing."""
    fill_library(DOMAINS)
    shutil.rmtree(configured.index_dir)
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
    browser.execute_script("arguments[0].click()", browser.find_element(By.CSS_SELECTOR, css))


def test_matrix_is_paged_by_domains_and_releases(page: WebDriver, client: TestClient) -> None:
    complete = client.get("/forgetting", params={"rows": DOMAINS}).json()
    assert _rows(page) == ["nothing (zero-shot)", "its own release"] + [
        f"{number} {complete['after'][number - 1]}" for number in range(41, 61)
    ]
    assert texts(page, "#matrix thead th")[1:] == complete["tasks"][:20]
    learned = [f"{100 * share:.1f}" for share in complete["learned"]["local"][:20]]
    assert texts(page, "[data-testid^=learned]") == learned
    assert [page.find_element(By.ID, f"{axis}-window").text for axis in ("domain", "release")] == [
        f"Domains 1–20 of {complete['domains']}",
        "Releases 41–60 of 60",
    ]
    _press(page, "release", "Earlier releases")
    wait_until(page, lambda b: _rows(b)[2].startswith("21 "))
    _press(page, "domain", "Later domains")
    wait_until(page, lambda b: texts(b, "#matrix thead th")[1:] == complete["tasks"][20:40])
    shown = [f"{100 * share:.1f}" for share in complete["matrix_local"][39][20:40] if share is not None]
    assert texts(page, "[data-testid^=cell-40-]") == shown
    page.execute_script("document.querySelector('[data-gallery=global]').click()")
    shown = [f"{100 * share:.1f}" for share in complete["matrix_global"][39][20:40] if share is not None]
    wait_until(page, lambda b: texts(b, "[data-testid^=cell-40-]") == shown)
    assert not texts(page, "#time-legend li"), "no lines of 60 domains"


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
    pager = page.find_element(By.CSS_SELECTOR, "[aria-label='Pages of domains']")
    following = pager.find_element(By.XPATH, ".//button[.='Next']")
    page.execute_script("arguments[0].click()", following)
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[10:20])
    assert "Page 2" in pager.text
    page.execute_script("arguments[0].click()", pager.find_element(By.XPATH, ".//button[.='Previous']"))
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[:10])
    search = page.find_element(By.ID, "tasks-text")
    search.send_keys("POTTERY")
    wanted = [name for name in names if name.startswith("pottery")]
    wait_until(page, lambda b: texts(b, "#tasks .name") == wanted)
    assert not pager.is_displayed()
    search.send_keys(" %_")
    wait_until(page, lambda b: "No domain matches" in b.find_element(By.ID, "tasks-none").text)
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.BACKSPACE)
    wait_until(page, lambda b: texts(b, "#tasks .name") == names[:10])
    page.execute_script("document.querySelector('[data-state=failed]').click()")
    wait_until(page, lambda b: b.find_element(By.ID, "tasks-none").text == "No domain is in this state.")


def test_shards_and_releases_are_paged(page: WebDriver) -> None:
    wait_for(page, "#shards tbody tr", 10)
    first = texts(page, "#releases tbody tr td:nth-child(2)")
    pager = page.find_element(By.CSS_SELECTOR, "[aria-label='Pages of releases']")
    page.execute_script("arguments[0].click()", pager.find_element(By.XPATH, ".//button[.='Next']"))
    wait_until(page, lambda b: set(texts(b, "#releases tbody tr td:nth-child(2)")).isdisjoint(first))
    assert len(texts(page, "#releases tbody tr")) == 10


def test_search_page_offers_the_newest_domains_and_finds_others(
    browser: WebDriver, large: str, client: TestClient
) -> None:
    names = [task["name"] for task in client.get("/tasks").json()]
    browser.get(large.removesuffix("/admin"))
    assert wait_for_texts(browser, "#domains button", 41) == ["All domains", *names[-40:]]
    assert texts(browser, "#layers b") == list(reversed(names))[:12]
    assert browser.find_element(By.ID, "lead").text.startswith("0 videos in 60 domains")  # no index
    search = browser.find_element(By.ID, "domain-text")
    search.send_keys("POTTERY")
    wanted = sorted(name for name in names if name.startswith("pottery"))
    wait_until(browser, lambda b: texts(b, "#domains button") == ["All domains", *wanted])
    browser.find_element(By.CSS_SELECTOR, f"#domains [data-task='{wanted[0]}']").click()
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys("no such domain")
    wait_until(browser, lambda b: texts(b, "#domains button") == ["All domains", wanted[0]])
    assert browser.find_element(By.CSS_SELECTOR, "#domains [aria-checked=true]").text == wanted[0]
    _assert_lists_of_tasks_are_limited(browser)


def _assert_lists_of_tasks_are_limited(browser: WebDriver) -> None:
    requested = browser.execute_script(
        "return performance.getEntriesByType('resource').map(({name}) => new URL(name))"
        ".filter(({pathname}) => pathname === '/tasks').map(({search}) => search)"
    )
    assert all("limit=" in query for query in requested)
    assert requested or "/domains/" not in browser.current_url
