"""A served application for the browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.remote.webdriver import WebDriver

from service.access.credentials import note_change
from service.catalog.database import session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession, User
from tests.api.browser import Keyboard, serve, wait_for


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


@pytest.fixture
def keyboard(browser: WebDriver, address: str) -> Keyboard:
    """The keyboard, on the start page."""
    browser.get(address)
    wait_for(browser, "#domains button", 3)
    return Keyboard(browser)


@pytest.fixture
def open_service() -> Iterator[None]:
    """A service without keys and users before and after the test."""
    yield
    with session_scope(write=True) as session:
        for table in (BrowserSession, ApiKey, User):
            session.query(table).delete()
    note_change()
