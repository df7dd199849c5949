"""Filters, result pages and suggestions on the search page, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from models.routing.confidence_model import ConfidenceModel
from service.catalog.database import session_scope
from service.catalog.tables import Video
from tests.api.browser import find, press, texts, wait_for, wait_for_texts, wait_until
from tests.api.learned_library import SECOND
from tests.catalog_rows import count_changes

pytestmark = pytest.mark.slow  # drives a browser

RESULT = "[data-testid=result]"


@pytest.fixture(scope="module", autouse=True)
def facts(library: list[str]) -> dict[str, dict[str, Any]]:
    """Metadata of every video by its ID: a place and a number."""
    with session_scope(write=True) as session:
        videos = session.query(Video).order_by(Video.vector_id).all()
        for number, video in enumerate(videos):
            video.extra = {"place": ("kitchen", "street")[number % 2], "take": number % 3}
        count_changes(session, videos)
        return {video.id: video.extra for video in videos}


@pytest.fixture
def page(browser: WebDriver, address: str) -> Callable[[str], None]:
    """``page(query)`` opens the search page and waits until it is usable."""

    def open_page(query: str) -> None:
        browser.get(f"{address}/{query}")
        wait_for(browser, "#domains button", 3)
        if query:
            wait_until(browser, lambda b: find(b, "#answer").get_attribute("aria-busy") == "false")

    return open_page


def _shown(browser: WebDriver) -> list[str]:
    return browser.execute_script(
        f"return [...document.querySelectorAll('{RESULT}')].map((card) => card.dataset.video)"
    )


def _fill(browser: WebDriver, **values: str) -> None:
    """Open the filters, set values, and apply them."""
    if not find(browser, "#filter").get_property("open"):
        find(browser, "#filter summary").click()
    for name, value in values.items():
        # A date is typed in the order of the browser's language.
        browser.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, value)
    find(browser, "#filter-form [type=submit]").click()


def test_metadata_filters_are_applied_and_kept_in_the_address(
    browser: WebDriver, page: Callable[[str], None], facts: dict[str, dict[str, Any]]
) -> None:
    page("?q=a+ball+moves&k=48")
    assert set(_shown(browser)) == set(facts)
    find(browser, "#filter summary").click()
    wait_for(browser, "#conditions input", 2)  # the toggle event fires asynchronously
    name, value = browser.find_elements(By.CSS_SELECTOR, "#conditions input")
    name.send_keys("take")
    value.send_keys("2")
    find(browser, "#add-condition").click()
    browser.switch_to.active_element.send_keys("place", Keys.TAB, "street", Keys.ENTER)
    expected = {video for video, known in facts.items() if known == {"place": "street", "take": 2}}
    wait_until(browser, lambda b: set(_shown(b)) == expected)
    assert find(browser, "#filter summary").text == "Filters · 2"
    parameters = parse_qs(urlsplit(browser.current_url).query)
    assert json.loads(parameters["where"][0]) == {"take": {"any": ["2", 2]}, "place": "street"}
    shared = browser.current_url
    browser.back()
    wait_until(browser, lambda b: set(_shown(b)) == set(facts))
    assert find(browser, "#filter summary").text == "Filters"
    browser.get(shared)  # a shared address
    wait_until(browser, lambda b: set(_shown(b)) == expected)
    find(browser, "#filter summary").click()
    written = [i.get_property("value") for i in browser.find_elements(By.CSS_SELECTOR, "#conditions input")]
    assert written == ["take", "2", "place", "street"]
    find(browser, "#conditions li:first-child button").click()
    assert find(browser, "#filter").get_property("open")
    find(browser, "#clear-filters").click()
    wait_until(browser, lambda b: set(_shown(b)) == set(facts))
    assert "where" not in browser.current_url


def test_score_duration_and_date_filters_are_sent_to_the_api(
    browser: WebDriver, page: Callable[[str], None], client: TestClient
) -> None:
    page("?q=a+ball+moves")
    results = client.get("/search", params={"q": "a ball moves", "k": 24}).json()["results"]
    least = f"{results[4]['score'] - 1e-6:.6f}"
    _fill(browser, min_score=least)
    wait_until(browser, lambda b: len(_shown(b)) == 5)
    today = date.today()
    _fill(browser, min_score="", arrived_after=str(today), arrived_before=str(today), min_duration="0.1")
    wait_until(browser, lambda b: len(_shown(b)) == 24)
    parameters = parse_qs(urlsplit(browser.current_url).query)
    assert set(parameters) == {"q", "arrived_after", "arrived_before", "min_duration"}
    browser.refresh()
    wait_until(browser, lambda b: len(_shown(b)) == 24)
    days = [find(browser, f"#arrived_{end}").get_property("value") for end in ("after", "before")]
    assert days == [str(today), str(today)]
    _fill(browser, arrived_after="", arrived_before=str(today - timedelta(days=1)))
    wait_until(browser, lambda b: "Relax the filters" in find(b, "#message").text)


def test_invalid_filter_is_marked(browser: WebDriver, page: Callable[[str], None]) -> None:
    page("?q=a+ball+moves")
    _fill(browser, min_duration="9", max_duration="3")
    wait_until(browser, lambda b: "exceeds max_duration" in find(b, "#message").text)
    assert find(browser, "#min_duration").get_attribute("aria-invalid") == "true"
    browser.get_log("browser")  # the browser logs the refused request
    _fill(browser, max_duration="90", min_duration="0")
    wait_until(browser, lambda b: len(_shown(b)) == 24)
    assert find(browser, "#min_duration").get_attribute("aria-invalid") is None


@pytest.fixture
def calibrated(client: TestClient, library: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A served release with calibrated confidence."""
    service = client.app.state.query_service  # type: ignore[attr-defined]
    fitted = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), 0.0, 240, 0.04, None)
    fitted_snapshot = service.snapshots.current().with_lineages(
        lambda lineage: replace(lineage, confidence_model=fitted)
    )
    monkeypatch.setattr(service.snapshots, "current", lambda: fitted_snapshot)


def test_more_button_appends_pages_until_the_last(
    browser: WebDriver, page: Callable[[str], None], client: TestClient
) -> None:
    whole = client.get("/search", params={"q": "a ball moves", "k": 24}).json()["results"]
    page("?q=a+ball+moves&k=12")
    assert len(_shown(browser)) == 12
    more = find(browser, "#more-button")
    more.send_keys(Keys.ENTER)
    wait_until(browser, lambda b: len(_shown(b)) == 24)
    expected = sorted(whole, key=lambda result: result["matches"] is False)
    assert _shown(browser) == [result["video_id"] for result in expected]
    assert texts(browser, ".rank") == [str(result["rank"]) for result in expected]
    wait_until(browser, lambda b: not more.is_displayed())
    first_new = next(result["video_id"] for result in expected if result["rank"] > 12)
    focused = browser.execute_script("return document.activeElement.closest('li').dataset.video")
    assert focused == first_new, "the keyboard focus is on the first new result"
    browser.execute_script(f"document.querySelector(\"#domains [data-task='{SECOND}']\").click()")
    wait_until(browser, lambda b: len(_shown(b)) == 12)
    assert not find(browser, "#more-button").is_displayed()


HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
WORDS = [("ball", 12), ("balloon", 7), (HOSTILE, 3), ("$&", 1)]
OPTION = "#suggestions [role=option]"
# Answers each request after a delay, as an aborted request would be refused.
STUB = """
  window.suggested = [];
  window.searched = [];
  window.stated = STATED;
  const original = window.fetch;
  window.fetch = (path, options) => {
    if (String(path).startsWith("/search")) window.searched.push(String(path));
    if (!String(path).startsWith("/suggestions")) return original(path, options);
    const request = { path: String(path), aborted: false };
    window.suggested.push(request);
    const { status, body, delay } = window.stated;
    return new Promise((resolve, reject) => {
      setTimeout(() => resolve(new Response(JSON.stringify(body), { status })), delay);
      options.signal.addEventListener("abort", () => {
        request.aborted = true;
        reject(new DOMException("aborted", "AbortError"));
      });
    });
  };
"""

Open = Callable[..., WebElement]


@pytest.fixture
def open_page(browser: WebDriver, address: str) -> Iterator[Open]:
    """``open_page(words, status, delay)`` opens the search page with stated suggestions, and returns the field."""
    scripts: list[str] = []

    def open_stubbed(
        words: list[tuple[str, int]] = WORDS, status: int = 200, delay: int = 0, query: str = ""
    ) -> WebElement:
        body = {"suggestions": [{"text": text, "count": count} for text, count in words]}
        stated = json.dumps({"status": status, "body": body, "delay": delay})
        source = STUB.replace("STATED", stated)
        added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
        scripts.append(added["identifier"])
        browser.get(f"{address}/{query}")
        wait_for(browser, "#domains button", 3)
        return find(browser, "#q")

    yield open_stubbed
    for script in scripts:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})


def _log(browser: WebDriver, name: str) -> list[Any]:
    logged: list[Any] = browser.execute_script(f"return window.{name}")
    return logged


def _active(browser: WebDriver, field: WebElement) -> str | None:
    """Return the text of the option that assistive technology reads as the active one."""
    option = field.get_attribute("aria-activedescendant")
    return find(browser, f"#{option} span").text if option else None


def test_keyboard_takes_a_word_and_searches(browser: WebDriver, open_page: Open) -> None:
    field = open_page()
    wait_for(browser, "#examples button")  # its searches are not those of the typed text
    browser.execute_script("window.searched.length = 0")
    assert (field.aria_role, field.get_attribute("aria-expanded")) == ("combobox", "false")
    field.send_keys("a red bal")
    assert wait_for_texts(browser, OPTION, 4) == [f"{text}\n{count}" for text, count in WORDS]
    assert field.get_attribute("aria-expanded") == "true"
    assert [request["path"] for request in _log(browser, "suggested")][-1] == "/suggestions?q=a+red+bal&k=8"
    assert _log(browser, "searched") == [], "typing does not search"
    active = []
    for key in (Keys.DOWN, Keys.DOWN, Keys.UP, Keys.UP, Keys.UP, Keys.DOWN, Keys.DOWN, Keys.DOWN):
        press(browser, key)
        active.append(_active(browser, field))
    assert active == ["ball", "balloon", "ball", None, "$&", None, "ball", "balloon"]
    assert find(browser, "[aria-selected=true]").text == "balloon\n7"
    press(browser, Keys.ENTER)
    wait_for(browser, "[data-testid=result]", 1)
    assert field.get_property("value") == "a red balloon"
    assert "q=a+red+balloon" in browser.current_url
    assert not find(browser, "#suggestions").is_displayed()
    assert browser.switch_to.active_element == field
    assert browser.title != "taken"


def test_escape_closes_the_list_and_then_clears_the_field(browser: WebDriver, open_page: Open) -> None:
    field = open_page()
    field.send_keys("bal")
    wait_for(browser, OPTION, 4)
    press(browser, Keys.DOWN, Keys.ESCAPE)
    assert not texts(browser, OPTION)
    assert field.get_property("value") == "bal"
    assert field.get_attribute("aria-activedescendant") is None
    press(browser, Keys.DOWN)  # opens the list again
    wait_for(browser, OPTION, 4)
    press(browser, Keys.TAB)
    wait_until(browser, lambda b: not texts(b, OPTION))
    field.click()
    press(browser, Keys.ESCAPE)
    assert field.get_property("value") == ""
