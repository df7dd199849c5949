"""Pages while an earlier release is served: the later domain is shown as not searched, and no page searches it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from tests.api.browser import texts, wait_for, wait_for_texts, wait_until
from tests.api.learned_library import FIRST, SECOND

pytestmark = pytest.mark.slow  # drives a browser


@pytest.fixture(autouse=True)
def _rollback(client: TestClient, library: list[str]) -> Iterator[None]:
    client.post(f"/releases/{library[0]}/serve")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    yield
    client.post("/releases/newest/serve")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]


def _text(browser: WebDriver, identifier: str) -> str:
    return browser.find_element(By.ID, identifier).text


def test_search_page_offers_only_searched_domains(
    browser: WebDriver, client: TestClient, address: str
) -> None:
    videos = client.get("/library").json()["searchable"]
    browser.get(address)
    wait_for(browser, "#examples button")  # searches for examples have no error in the console
    assert _text(browser, "lead").startswith(f"{videos} videos in 1 domain,")
    notice = _text(browser, "unsearched")
    assert "1 later domain" in notice
    assert f"not searched: “{SECOND}”" in notice
    assert len(texts(browser, "#layers .layer")) == 1
    chips = browser.find_elements(By.CSS_SELECTOR, "#domains button")
    assert {chip.text: chip.is_enabled() for chip in chips} == {
        "All domains": True,
        FIRST: True,
        SECOND: False,
    }


def test_search_in_an_unsearched_domain_is_explained(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?{urlencode({'q': 'something moves', 'task': SECOND})}")
    (message,) = wait_for_texts(browser, "#message:not([hidden])")
    assert f"“{SECOND}” is not searched." in message
    assert "/releases" not in message
    browser.find_element(By.CSS_SELECTOR, "#message button").click()  # all domains
    wait_until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#results .result"))
