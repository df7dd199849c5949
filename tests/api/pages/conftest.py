"""A served application for the browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.remote.webdriver import WebDriver

from tests.api.browser import serve


@pytest.fixture(scope="module")
def address(client: TestClient, library: list[str]) -> Iterator[str]:
    """URL of the application with two learned domains."""
    with serve(client.app) as url:
        yield url


@pytest.fixture(autouse=True)
def no_console_errors(browser: WebDriver) -> Iterator[None]:
    """Fail a test if a page logs an error in the browser's console."""
    browser.get("about:blank")  # a page of an earlier test would reconnect to its stopped server
    browser.get_log("browser")
    yield
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
