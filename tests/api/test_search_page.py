"""Filters and further results on the search page, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from models.routing.confidence_model import ConfidenceModel
from service.catalog.database import session_scope
from service.catalog.tables import Video
from tests.api.test_dashboard import SECOND, _texts, _until, _wait, address, browser, no_errors  # noqa: F401

RESULT = "[data-testid=result]"


@pytest.fixture(scope="module", autouse=True)
def facts(library: list[str]) -> dict[str, dict[str, Any]]:
    """Metadata for every video, by its id: a place and a number."""
    with session_scope(write=True) as session:
        videos = session.query(Video).order_by(Video.vector_id).all()
        for number, video in enumerate(videos):
            video.extra = {"place": ("kitchen", "street")[number % 2], "take": number % 3}
        return {video.id: video.extra for video in videos}


@pytest.fixture
def page(browser: WebDriver, address: str) -> Callable[[str], None]:  # noqa: F811
    """``page(query)``: open the search page, and wait for it to be usable."""

    def open_page(query: str) -> None:
        browser.get(f"{address}/{query}")
        _wait(browser, "#domains button", 3)
        if query:
            _until(browser, lambda b: b.find_element(By.ID, "answer").get_attribute("aria-busy") == "false")

    return open_page


def _shown(browser: WebDriver) -> list[str]:  # noqa: F811
    return browser.execute_script(
        f"return [...document.querySelectorAll('{RESULT}')].map((card) => card.dataset.video)"
    )


def _fill(browser: WebDriver, **values: str) -> None:  # noqa: F811
    """Open the filters, write into them, and apply."""
    if not browser.find_element(By.ID, "filter").get_property("open"):
        browser.find_element(By.CSS_SELECTOR, "#filter summary").click()
    for name, value in values.items():
        # A date is typed in the order of the browser's language.
        browser.execute_script("document.getElementById(arguments[0]).value = arguments[1]", name, value)
    browser.find_element(By.CSS_SELECTOR, "#filter-form [type=submit]").click()


def test_filters_narrow_and_are_remembered_in_the_address(
    browser: WebDriver,  # noqa: F811
    page: Callable[[str], None],
    facts: dict[str, dict[str, Any]],
) -> None:
    page("?q=a+ball+moves&k=48")
    assert set(_shown(browser)) == set(facts)
    browser.find_element(By.CSS_SELECTOR, "#filter summary").click()
    _wait(browser, "#conditions input", 2)  # the browser tells of the opening a moment later
    name, value = browser.find_elements(By.CSS_SELECTOR, "#conditions input")
    name.send_keys("take")
    value.send_keys("2")
    browser.find_element(By.ID, "add-condition").click()
    browser.switch_to.active_element.send_keys("place", Keys.TAB, "street", Keys.ENTER)
    expected = {video for video, known in facts.items() if known == {"place": "street", "take": 2}}
    _until(browser, lambda b: set(_shown(b)) == expected)
    assert browser.find_element(By.CSS_SELECTOR, "#filter summary").text == "Filters · 2"
    asked = parse_qs(urlsplit(browser.current_url).query)
    assert json.loads(asked["where"][0]) == {"take": {"any": ["2", 2]}, "place": "street"}
    shared = browser.current_url
    browser.back()
    _until(browser, lambda b: set(_shown(b)) == set(facts))
    assert browser.find_element(By.CSS_SELECTOR, "#filter summary").text == "Filters"
    browser.get(shared)  # as somebody else would open it
    _until(browser, lambda b: set(_shown(b)) == expected)
    browser.find_element(By.CSS_SELECTOR, "#filter summary").click()
    written = [i.get_property("value") for i in browser.find_elements(By.CSS_SELECTOR, "#conditions input")]
    assert written == ["take", "2", "place", "street"]
    browser.find_element(By.CSS_SELECTOR, "#conditions li:first-child button").click()
    assert browser.find_element(By.ID, "filter").get_property("open")
    browser.find_element(By.ID, "clear-filters").click()
    _until(browser, lambda b: set(_shown(b)) == set(facts))
    assert "where" not in browser.current_url


def test_scores_lengths_and_days_go_out_as_the_api_takes_them(
    browser: WebDriver,  # noqa: F811
    page: Callable[[str], None],
    client: TestClient,
) -> None:
    page("?q=a+ball+moves")
    results = client.get("/search", params={"q": "a ball moves", "k": 24}).json()["results"]
    least = f"{results[4]['score'] - 1e-6:.6f}"
    _fill(browser, min_score=least)
    _until(browser, lambda b: len(_shown(b)) == 5)
    today = date.today()
    _fill(browser, min_score="", arrived_after=str(today), arrived_before=str(today), min_duration="0.1")
    _until(browser, lambda b: len(_shown(b)) == 24)
    asked = parse_qs(urlsplit(browser.current_url).query)
    assert set(asked) == {"q", "arrived_after", "arrived_before", "min_duration"}
    browser.refresh()
    _until(browser, lambda b: len(_shown(b)) == 24)
    days = [
        browser.find_element(By.ID, f"arrived_{end}").get_property("value") for end in ("after", "before")
    ]
    assert days == [str(today), str(today)]
    _fill(browser, arrived_after="", arrived_before=str(today - timedelta(days=1)))
    _until(browser, lambda b: "Relax the filters" in b.find_element(By.ID, "message").text)


def test_what_is_wrong_is_pointed_at(browser: WebDriver, page: Callable[[str], None]) -> None:  # noqa: F811
    page("?q=a+ball+moves")
    _fill(browser, min_duration="9", max_duration="3")
    _until(browser, lambda b: "exceeds max_duration" in b.find_element(By.ID, "message").text)
    assert browser.find_element(By.ID, "min_duration").get_attribute("aria-invalid") == "true"
    browser.get_log("browser")  # the refused request itself is logged by the browser
    _fill(browser, max_duration="90", min_duration="0")
    _until(browser, lambda b: len(_shown(b)) == 24)
    assert browser.find_element(By.ID, "min_duration").get_attribute("aria-invalid") is None


@pytest.fixture
def calibrated(
    client: TestClient, library: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], None]:
    """``calibrated(bias)``: the release is as sure of its results as this lets it be."""
    service = client.app.state.query_service  # type: ignore[attr-defined]
    before = service.snapshots.current()

    def sure(bias: float) -> None:
        fitted = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), bias, 240, 0.04)
        fitted_snapshot = replace(before, confidence_model=fitted)
        monkeypatch.setattr(service.snapshots, "current", lambda: fitted_snapshot)

    return sure


def test_a_least_confidence_is_kept_in_the_address_and_refused_at_its_field(
    browser: WebDriver,  # noqa: F811
    page: Callable[[str], None],
    client: TestClient,
    calibrated: Callable[[float], None],
) -> None:
    calibrated(0.0)
    sure = [
        r["confidence"]
        for r in client.get("/search", params={"q": "a ball moves", "k": 24}).json()["results"]
    ]
    assert sure[3] > sure[4] > 0
    page("?q=a+ball+moves")
    _fill(browser, min_confidence="7")  # the browser knows that it is too much
    assert "1" in _at(browser, "min_confidence").text
    assert browser.switch_to.active_element.get_attribute("id") == "min_confidence"
    least = f"{(sure[3] + sure[4]) / 2:.9f}"
    _fill(browser, min_confidence=least)
    _until(browser, lambda b: len(_shown(b)) == 4)
    assert parse_qs(urlsplit(browser.current_url).query)["min_confidence"] == [least]
    assert browser.find_element(By.CSS_SELECTOR, "#filter summary").text == "Filters · 1"
    browser.refresh()
    _until(browser, lambda b: len(_shown(b)) == 4)
    assert browser.find_element(By.ID, "min_confidence").get_property("value") == least
    page("?q=a+ball+moves&min_confidence=1.5")
    assert _at(browser, "min_confidence").text == "The value is not a probability. Give a number from 0 to 1."
    assert browser.switch_to.active_element.get_attribute("id") == "min_confidence"
    browser.get_log("browser")  # the refused request itself is logged by the browser
    _fill(browser, min_confidence="")
    _until(browser, lambda b: len(_shown(b)) == 24)
    assert not browser.find_elements(By.CSS_SELECTOR, "#filter [aria-invalid], #filter .field-error")


def _at(browser: WebDriver, field: str) -> WebElement:  # noqa: F811
    """What is said of a field, as whoever cannot see the page is told."""
    said = browser.find_element(By.ID, field).get_attribute("aria-describedby")
    return browser.find_element(By.ID, said or "")


def test_where_nothing_is_likely_to_be_right_the_page_says_so_and_hides_nothing(
    browser: WebDriver,  # noqa: F811
    page: Callable[[str], None],
    client: TestClient,
    calibrated: Callable[[float], None],
) -> None:
    calibrated(-9.0)
    among = client.get("/search", params={"q": "a ball moves"}).json()["confidence"]
    assert 0 < among < 0.1
    page("?q=a+ball+moves")
    said = browser.find_element(By.ID, "message").text
    assert "No result fits well." in said
    assert f"with a probability of {100 * among:.1f} %" in said
    assert len(_shown(browser)) == 24
    assert set(_texts(browser, ".likelihood")) == {"unlikely"}
    page("?q=a+ball+moves&min_confidence=0.5")
    assert "No single result reaches 0.5" in browser.find_element(By.ID, "message").text
    assert not _shown(browser)
    calibrated(3.0)
    page("?q=a+ball+moves")
    assert len(_shown(browser)) == 24
    assert not browser.find_element(By.ID, "message").is_displayed()


def test_more_results_follow_until_there_are_none(
    browser: WebDriver,  # noqa: F811
    page: Callable[[str], None],
    client: TestClient,
) -> None:
    whole = client.get("/search", params={"q": "a ball moves", "k": 24}).json()["results"]
    page("?q=a+ball+moves&k=12")
    assert len(_shown(browser)) == 12
    more = browser.find_element(By.ID, "more-button")
    more.send_keys(Keys.ENTER)
    _until(browser, lambda b: len(_shown(b)) == 24)
    assert _shown(browser) == [result["video_id"] for result in whole]
    assert _texts(browser, ".rank") == [str(rank) for rank in range(1, 25)]
    _until(browser, lambda b: not more.is_displayed())
    thirteenth = browser.find_elements(By.CSS_SELECTOR, f"{RESULT} .play")[12]
    assert browser.switch_to.active_element == thirteenth, "a keyboard goes on where the new ones begin"
    browser.execute_script(f"document.querySelector(\"#domains [data-task='{SECOND}']\").click()")
    _until(browser, lambda b: len(_shown(b)) == 12)
    assert not browser.find_element(By.ID, "more-button").is_displayed()


def test_keys_open_and_close_and_everything_has_a_name(
    browser: WebDriver,  # noqa: F811
    page: Callable[[str], None],
) -> None:
    page("?q=a+ball+moves")
    for popover in ("filter", "options"):
        summary = browser.find_element(By.CSS_SELECTOR, f"#{popover} summary")
        browser.execute_script("arguments[0].focus()", summary)
        webdriver.ActionChains(browser).send_keys(Keys.ENTER).perform()
        _until(browser, lambda b, popover=popover: b.find_element(By.ID, popover).get_property("open"))
        controls = browser.find_elements(By.CSS_SELECTOR, f"#{popover} :is(input, select, button)")
        assert len(controls) >= 5
        assert all(control.accessible_name for control in controls)
        webdriver.ActionChains(browser).send_keys(Keys.TAB, Keys.ESCAPE).perform()
        assert not browser.find_element(By.ID, popover).get_property("open")
        assert browser.switch_to.active_element == summary


@pytest.mark.parametrize("size", [(390, 844), (390, 480), (1440, 900)])
def test_nothing_lies_over_the_domains_and_all_of_a_popover_can_be_reached(
    browser: WebDriver,  # noqa: F811
    page: Callable[[str], None],
    size: tuple[int, int],
) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500},
    )
    box = (
        "const r = document.querySelector(arguments[0]).getBoundingClientRect(); "
        "return [r.left, r.top, r.right, r.bottom]"
    )
    try:
        page("?q=a+ball+moves")
        left, top, right, bottom = browser.execute_script(box, "#domains")
        for popover in ("filter", "options"):
            x0, y0, x1, y1 = browser.execute_script(box, f"#{popover} summary")
            assert x0 >= right or y0 >= bottom or x1 <= left or y1 <= top
            browser.find_element(By.CSS_SELECTOR, f"#{popover} summary").click()
            x0, y0, x1, y1 = browser.execute_script(box, f"#{popover} .popover")
            assert (x0 >= 0, x1 <= size[0]) == (True, True)
            browser.execute_script(f"document.querySelector('#{popover} .popover').scrollTop = 10000")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
