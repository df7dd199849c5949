"""Suggestions below the search box, in a real browser. Most tests answer the requests for suggestions themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from tests.api.browser import texts, wait_for, wait_for_texts, wait_until

pytestmark = pytest.mark.slow  # drives a browser

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
        return browser.find_element(By.ID, "q")

    yield open_stubbed
    for script in scripts:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})


def _log(browser: WebDriver, name: str) -> list[Any]:
    logged: list[Any] = browser.execute_script(f"return window.{name}")
    return logged


def _press(browser: WebDriver, *keys: str) -> None:
    webdriver.ActionChains(browser).send_keys(*keys).perform()


def _active(browser: WebDriver, field: WebElement) -> str | None:
    """Return the text of the option that assistive technology reads as the active one."""
    option = field.get_attribute("aria-activedescendant")
    return browser.find_element(By.CSS_SELECTOR, f"#{option} span").text if option else None


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
        _press(browser, key)
        active.append(_active(browser, field))
    assert active == ["ball", "balloon", "ball", None, "$&", None, "ball", "balloon"]
    assert browser.find_element(By.CSS_SELECTOR, "[aria-selected=true]").text == "balloon\n7"
    _press(browser, Keys.ENTER)
    wait_for(browser, "[data-testid=result]", 1)
    assert field.get_property("value") == "a red balloon"
    assert "q=a+red+balloon" in browser.current_url
    assert not browser.find_element(By.ID, "suggestions").is_displayed()
    assert browser.switch_to.active_element == field
    assert browser.title != "taken"


def test_escape_closes_the_list_and_then_clears_the_field(browser: WebDriver, open_page: Open) -> None:
    field = open_page()
    field.send_keys("bal")
    wait_for(browser, OPTION, 4)
    _press(browser, Keys.DOWN, Keys.ESCAPE)
    assert not texts(browser, OPTION)
    assert field.get_property("value") == "bal"
    assert field.get_attribute("aria-activedescendant") is None
    _press(browser, Keys.DOWN)  # opens the list again
    wait_for(browser, OPTION, 4)
    _press(browser, Keys.TAB)
    wait_until(browser, lambda b: not texts(b, OPTION))
    field.click()
    _press(browser, Keys.ESCAPE)
    assert field.get_property("value") == ""
