"""Notice of the search page while searches use a copy of the catalog, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from tests.api.browser import texts, wait_for, wait_until

pytestmark = pytest.mark.slow  # drives a browser

RESULT = "[data-testid=result]"


def test_results_of_a_copy_have_its_time(
    client: TestClient, browser: WebDriver, address: str, lose_database: Callable[[], None]
) -> None:
    opened = datetime.now(UTC)
    browser.get(f"{address}/?q=a+bus")
    wait_for(browser, RESULT)
    assert "cannot be reached" not in _message(browser)
    read_cache = client.app.state.query_service.read_cache  # type: ignore[attr-defined]
    wait_until(browser, lambda _: read_cache.as_of and read_cache.as_of > opened)
    lose_database()
    _search(browser, "a bus at night")
    wait_until(browser, lambda _: "catalog database can't be reached" in _message(browser))
    assert texts(browser, RESULT)
    stated = browser.execute_script(
        "return new Date(arguments[0]).toLocaleString(undefined, {dateStyle: 'medium', timeStyle: 'medium'})",
        read_cache.as_of.isoformat(),
    )
    assert f"captions are from {stated}, and later videos are missing." in _message(browser)
    browser.get_log("browser")  # other requests of the page get 503


def _search(browser: WebDriver, text: str) -> None:
    field = browser.find_element(By.ID, "q")
    field.clear()
    field.send_keys(text + "\n")


def _message(browser: WebDriver) -> str:
    return browser.find_element(By.ID, "message").text
