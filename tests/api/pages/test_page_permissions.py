"""Navigation and controls of the pages for each role, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from service.access.credentials import note_change
from service.access.users import create_user
from service.catalog.access_tables import BrowserSession, User
from service.catalog.database import session_scope
from service.core.schemas import UserSpec
from tests.api.browser import screen_size, texts, wait_for, wait_until

pytestmark = pytest.mark.slow  # drives a browser

PASSWORD = "correct horse battery"
ROLES = ("search", "ingest", "admin")


@pytest.fixture
def users(client: TestClient) -> Iterator[None]:
    """A user of each role, named like the role."""
    for role in ROLES:
        create_user(UserSpec.model_validate({"name": role, "password": PASSWORD, "scope": role}))
    yield
    with session_scope(write=True) as session:
        for table in (BrowserSession, User):
            session.query(table).delete()
    note_change()


def sign_in(browser: WebDriver, address: str, role: str) -> None:
    browser.get(f"{address}/login")
    browser.delete_all_cookies()
    browser.find_element(By.ID, "name").send_keys(role)
    browser.find_element(By.ID, "password").send_keys(PASSWORD + "\n")
    wait_for(browser, "#q")


@pytest.mark.parametrize("width", [360, 1440])
def test_every_page_links_to_the_reference(
    browser: WebDriver, address: str, users: None, library: list[str], client: TestClient, width: int
) -> None:
    sign_in(browser, address, "admin")
    video = client.get(f"/tasks/{library[0]}/videos", headers=_cookie(browser)).json()["videos"][0]["id"]
    pages = ["/", "/admin", f"/domains/{library[0]}", f"/watch/{video}", "/access", "/docs"]
    with screen_size(browser, width, 844):
        for page in pages:
            browser.get(address + page)
            link = browser.find_element(By.CSS_SELECTOR, ".bar nav a[href='/docs']")
            assert link.is_displayed()
            assert texts(browser, ".bar nav a") == ["Search", "Library", "Access", "API"]
            bar = browser.find_element(By.CSS_SELECTOR, ".bar")
            wait_until(browser, lambda b, bar=bar: bar.get_property("scrollWidth") <= width)
            assert link.rect["x"] + link.rect["width"] <= width
        link.click()
        assert browser.current_url == f"{address}/docs"
        assert texts(browser, ".bar nav [aria-current=page]") == ["API"]


def _cookie(browser: WebDriver) -> dict[str, str]:
    (cookie,) = browser.get_cookies()
    return {"Cookie": f"{cookie['name']}={cookie['value']}"}
