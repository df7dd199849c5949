"""Deletion of videos and domains in a real browser. The tests run in order and consume one library."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from cinestrata_schemas.videos import DeletionResult
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import Unavailable
from service.library import deletion
from tests.api.browser import find, press, texts, wait_for, wait_for_texts, wait_until
from tests.api.learned_library import FIRST, SECOND

pytestmark = pytest.mark.slow  # drives a browser


def _is_dialog_open(browser: WebDriver) -> bool:
    return bool(browser.find_elements(By.ID, "delete"))


def _focused(browser: WebDriver) -> str:
    return str(
        browser.execute_script(
            "return document.activeElement.id || document.activeElement.textContent.trim()"
        )
    )


def test_learned_domain_is_deleted_by_keyboard(
    browser: WebDriver, address: str, client: TestClient, library: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    going, answers = threading.Event(), iter([_refused, deletion.delete_task])

    def slow(task_id: str) -> DeletionResult:
        answer: Callable[[str], DeletionResult] = next(answers)
        assert going.wait(20)
        return answer(task_id)

    monkeypatch.setattr(deletion, "delete_task", slow)
    browser.get(f"{address}/admin")
    wait_for(browser, "[data-testid=cell-2-1]")
    assert texts(browser, "#matrix thead th") == ["After", FIRST, SECOND]
    menu = f"[aria-label='More actions for {FIRST}']"
    browser.execute_script("arguments[0].focus()", find(browser, menu))
    press(browser, Keys.ENTER, Keys.ESCAPE)
    assert _focused(browser) == "⋯"
    press(browser, Keys.ENTER, Keys.TAB)
    assert _focused(browser) == "Delete"
    press(browser, Keys.ENTER, SECOND)
    assert not find(browser, "#delete .danger").is_enabled(), "the name of another domain"
    assert "until the library is compacted" in find(browser, "#delete .stays").text
    press(browser, *[Keys.BACKSPACE] * len(SECOND), FIRST, Keys.TAB)
    assert _focused(browser) == "Cancel"
    press(browser, Keys.TAB)
    assert _focused(browser) == "Delete permanently"
    press(browser, Keys.ENTER)
    wait_until(browser, lambda b: find(b, "#delete [role=status]").text == "Deleting …")
    press(browser, Keys.ESCAPE)
    browser.execute_script("document.getElementById('delete').click()")  # a click on the backdrop
    assert _is_dialog_open(browser), "the result of the request must stay visible"
    going.set()
    wait_until(browser, lambda b: "The disk went away" in find(b, "#delete [role=alert]").text)
    browser.get_log("browser")  # the browser logs the refused request
    assert (_focused(browser), len(client.get("/tasks").json())) == ("delete-name", 2)
    press(browser, Keys.ENTER)
    wait_until(browser, lambda b: not _is_dialog_open(b))
    wait_until(browser, lambda b: texts(b, "#matrix thead th") == ["After", SECOND])
    assert texts(browser, "#matrix tbody th")[-1] == f"1 {SECOND}"
    assert find(browser, f"[data-testid=state-{FIRST}]").text == "deleted"
    assert not find(browser, menu).is_displayed()
    assert find(browser, "#learned").text == "1 domain"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#learned-bar span")) == 1
    assert _focused(browser) == "tasks-done"
    find(browser, "#add").click()
    wait_until(browser, lambda b: texts(b, "#f-into option") == ["New domain", f"Append to {SECOND}"])
    with session_scope(write=True) as session:
        session.get_one(Task, library[0]).position += 100  # the newest domain
    browser.get(f"{address}/admin?into={library[0]}")
    wait_until(browser, lambda b: texts(b, "#f-into option") == ["New domain", f"Append to {SECOND}"])
    assert find(browser, "#f-into").get_attribute("value") == ""
    wait_until(browser, lambda b: texts(b, "#tasks [data-testid^=state-]") == ["ready", "deleted"])
    matrix = client.get("/forgetting").json()["matrix_local"]
    assert find(browser, "[data-testid=cell-1-1]").text == f"{100 * matrix[-1][0]:.1f}*", "few queries"
    browser.get(address)
    assert wait_for_texts(browser, "#domains button", 2) == ["All domains", SECOND]


def _refused(_: str) -> DeletionResult:
    raise Unavailable("The disk went away.", 30)
