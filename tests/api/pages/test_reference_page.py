"""The API reference in a real browser, within the content security policy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from tests.api.browser import serve, wait_until


@pytest.fixture(scope="module")
def service(client: TestClient) -> Iterator[str]:
    """URL of the application with an empty library."""
    with serve(client.app) as url:
        yield url


@pytest.mark.slow
def test_link_opens_the_operation_that_it_names(browser: WebDriver, service: str) -> None:
    browser.get(f"{service}/docs#create_task")
    wait_until(browser, lambda b: b.find_element(By.ID, "create_task").is_displayed())
    assert "Idempotency-Key" in browser.find_element(By.ID, "create_task").text
    browser.find_element(By.CSS_SELECTOR, "nav a[href='#search']").click()
    wait_until(browser, lambda b: b.find_element(By.ID, "search").is_displayed())
    assert "SearchResponse" in browser.find_element(By.ID, "search").text


def test_reference_names_every_operation_and_problem(client: TestClient) -> None:
    page = client.get("/docs").text
    document = client.get("/openapi.json").json()
    for methods in document["paths"].values():
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in page
    for name in document["components"]["schemas"]:
        assert f'id="model-{name}"' in page
    assert "<code>not-found</code>" in page
    assert "style=" not in page
    assert "<code>task</code> is" in page
    assert "`" not in page
