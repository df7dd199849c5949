"""Sign-in, keys, users and the audit log in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import Select

from cinestrata_schemas.access import UserSpec
from service.access.credentials import find_key, note_change
from service.access.users import create_user
from service.catalog.database import session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession, User
from tests.api.browser import serve, texts, wait_for, wait_for_texts, wait_until

pytestmark = pytest.mark.slow  # drives a browser

PASSWORD = "correct horse battery"


@pytest.fixture
def address(client: TestClient) -> Iterator[str]:
    """URL of a service with the user ada, an administrator."""
    create_user(UserSpec.model_validate({"name": "ada", "password": PASSWORD, "scope": "admin"}))
    with serve(client.app) as url:
        yield url
    with session_scope(write=True) as session:
        for table in (BrowserSession, ApiKey, User):
            session.query(table).delete()
    note_change()


def _fill(browser: WebDriver, **values: str) -> None:
    for name, value in values.items():
        element = browser.find_element(By.ID, name.replace("_", "-"))
        if element.tag_name == "select":
            Select(element).select_by_value(value)
        else:
            element.send_keys(value)


def test_administrator_manages_access(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/access")
    assert browser.current_url == f"{address}/login?next=/access"
    _fill(browser, name="ada", password=PASSWORD + "\n")
    wait_for(browser, "[data-testid=user-ada]")
    assert browser.current_url == f"{address}/access"
    assert texts(browser, "nav [aria-current=page]") == ["Access"]

    _fill(browser, key_name="nightly", key_scope="ingest", key_days="30")
    browser.find_element(By.CSS_SELECTOR, "#new-key button").click()
    (row,) = wait_for_texts(browser, "[data-testid=key-nightly]")
    assert "ingest active" in row
    key = browser.find_element(By.CSS_SELECTOR, "[data-testid=created-key]").text
    assert getattr(find_key(key), "scope", None) == "ingest"
    browser.find_element(By.CSS_SELECTOR, "[data-testid=key-nightly] button").click()
    wait_until(browser, lambda b: "revoked" in texts(b, "[data-testid=key-nightly]")[0])

    _fill(browser, user_name="bob", user_password=PASSWORD)
    browser.find_element(By.CSS_SELECTOR, "#new-user button").click()
    wait_for(browser, "[data-testid=user-bob]")
    browser.find_element(By.CSS_SELECTOR, "[data-testid=user-bob] button:last-child").click()
    browser.switch_to.alert.accept()
    wait_until(browser, lambda b: not texts(b, "[data-testid=user-bob]"))

    wait_until(browser, lambda b: "user.remove" in texts(b, "#audit td:nth-child(4)"))
    _fill(browser, audit_action="key")
    browser.find_element(By.CSS_SELECTOR, "#audit-filter button").click()
    wait_until(browser, lambda b: texts(b, "#audit td:nth-child(4)")[:2] == ["key.revoke", "key.create"])
    browser.find_element(By.CSS_SELECTOR, ".tools form button").click()
    wait_for(browser, "form #name")
    browser.get(f"{address}/access")
    assert "/login" in browser.current_url
