"""Buttons that mark a result right or wrong, in a real browser."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from service.library.video_changes import list_feedback
from tests.api.browser import wait_for, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("library")]  # drives a browser

RESULT = "[data-testid=result]"
HOSTILE = "gramophone <img src=x onerror=\"document.title='taken'\">"


def _open(browser: WebDriver, address: str, text: str) -> WebElement:
    """Return the controls of the last result."""
    browser.get(f"{address}/?{urlencode({'q': text})}")
    wait_for(browser, RESULT, 1)
    wait_until(browser, lambda b: b.find_element(By.ID, "answer").get_attribute("aria-busy") == "false")
    return browser.find_elements(By.CSS_SELECTOR, f"{RESULT} .feedback")[-1]


def _shown(controls: WebElement) -> list[str]:
    buttons = controls.find_elements(By.TAG_NAME, "button")
    return [
        str(node.get_attribute("aria-label")).partition(":")[0] for node in buttons if node.is_displayed()
    ]


def test_result_is_confirmed_and_taken_back_by_keyboard(browser: WebDriver, address: str) -> None:
    controls = _open(browser, address, HOSTILE)
    assert _shown(controls) == ["Right for this query", "Wrong for this query"]
    right = next(node for node in controls.find_elements(By.TAG_NAME, "button") if node.is_displayed())
    right.send_keys(Keys.ENTER)
    wait_until(browser, lambda b: _shown(controls) == ["Undo"])
    status = controls.find_element(By.CSS_SELECTOR, "[role=status]")
    assert status.text == "Marked right"
    (entry,) = list_feedback().feedback
    assert (entry.text, entry.verdict) == (HOSTILE, "right")
    assert browser.switch_to.active_element.text == "Undo"

    found = _open(browser, address, "gramophone").find_element(By.XPATH, "ancestor::ol|ancestor::ul")
    first = found.find_element(By.CSS_SELECTOR, RESULT)
    assert first.get_attribute("data-video") == entry.video_id
    assert f"Confirmed: {HOSTILE}" in first.text
    assert browser.title != "taken"

    _open(browser, address, HOSTILE)
    controls = next(
        node.find_element(By.CSS_SELECTOR, ".feedback")
        for node in browser.find_elements(By.CSS_SELECTOR, RESULT)
        if node.get_attribute("data-video") == entry.video_id
    )
    wait_until(browser, lambda b: _shown(controls) == ["Undo"])
    assert controls.find_element(By.CSS_SELECTOR, "[role=status]").text == "Marked right"
    controls.find_element(By.CSS_SELECTOR, ".quiet").send_keys(Keys.SPACE)
    wait_until(browser, lambda b: len(_shown(controls)) == 2)
    assert list_feedback().feedback == []
