"""Deleting a domain or a video on the pages, in a real browser. These tests use up the library, in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from api.routes import deletion_routes
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.errors import Unavailable
from service.core.schemas import DeletionResult, TaskSpec
from service.library.deletion import delete_task
from service.tasks import commands
from tests.api.test_dashboard import FIRST, SECOND, _texts, _until, _wait, address, browser, no_errors  # noqa: F401


def _one(browser: WebDriver, css: str) -> WebElement:  # noqa: F811
    return browser.find_element(By.CSS_SELECTOR, css)


def _asked(browser: WebDriver) -> bool:  # noqa: F811
    return bool(browser.find_elements(By.ID, "delete"))


def _press(browser: WebDriver, *keys: str) -> None:  # noqa: F811
    webdriver.ActionChains(browser).send_keys(*keys).perform()


def _focused(browser: WebDriver) -> str:  # noqa: F811
    return str(
        browser.execute_script(
            "return document.activeElement.id || document.activeElement.textContent.trim()"
        )
    )


def test_a_video_goes_once_its_id_is_typed(browser: WebDriver, address: str, client: TestClient) -> None:  # noqa: F811
    hostile = "<img src=x onerror=\"document.title='taken'\">"
    with session_scope(write=True) as session:
        for video in session.query(Video):
            video.captions = [hostile, *video.captions]
    browser.get(f"{address}/?q=a+ball+moves")
    shown = _wait(browser, "[data-testid=result]", 24)
    doomed = _one(browser, "[data-testid=result]").get_attribute("data-video") or ""
    browser.execute_script("document.querySelector('.frame .open').click()")
    browser.execute_script("document.querySelector('#player-act button').focus()")
    _press(browser, Keys.ENTER, doomed[:-1])
    assert hostile in _one(browser, "#delete-lost").text
    assert not browser.find_elements(By.CSS_SELECTOR, "#delete-lost img")
    assert not _one(browser, "#delete .danger").is_enabled()
    _press(browser, Keys.ENTER)  # nothing is sent
    _press(browser, Keys.ESCAPE)
    _until(browser, lambda b: not _asked(b))
    assert _focused(browser) == "Delete this video"
    assert client.get(f"/videos/{doomed}").status_code == 200
    _press(browser, Keys.ENTER, doomed, Keys.ENTER)
    _until(browser, lambda b: len(_texts(b, "[data-testid=result]")) == len(shown) - 1)
    assert not browser.find_elements(By.CSS_SELECTOR, f"[data-video='{doomed}']")
    assert _focused(browser) == "search-done"
    assert not _one(browser, "#player").is_displayed()
    assert browser.title != "taken"
    assert client.get(f"/videos/{doomed}").status_code == 404


def test_a_domain_that_was_never_learned_leaves_the_list(
    browser: WebDriver,  # noqa: F811
    address: str,  # noqa: F811
    world: Path,
) -> None:
    videos = [{"uri": f"{FIRST}/{next((world / FIRST).glob('*.mp4')).name}"}]
    task = commands.create_task(TaskSpec.model_validate({"name": "mistake", "videos": videos})).task
    browser.get(f"{address}/admin")
    _wait(browser, "#tasks > li", 3)
    assert not _one(browser, "[aria-label='Delete mistake']").is_displayed(), "it is cancelled first"
    commands.cancel_task(task.id)
    _until(browser, lambda b: _one(b, "[aria-label='Delete mistake']").is_displayed())
    _one(browser, "[aria-label='Delete mistake']").click()
    assert "column" not in _one(browser, "#delete-lost").text
    _press(browser, "mistake", Keys.ENTER)
    _until(browser, lambda b: len(_texts(b, "#tasks > li")) == 2)
    assert "mistake" not in {task.name for task in commands.list_tasks()}


def test_a_domain_goes_by_keys_and_the_page_shows_what_is_left(
    browser: WebDriver,  # noqa: F811
    address: str,  # noqa: F811
    client: TestClient,
    library: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    going, answers = threading.Event(), iter([_refused, delete_task])

    def slow(task_id: str) -> DeletionResult:
        answer: Callable[[str], DeletionResult] = next(answers)
        assert going.wait(20)
        return answer(task_id)

    monkeypatch.setattr(deletion_routes, "delete_task", slow)
    browser.get(f"{address}/admin")
    _wait(browser, "#heat .heatmaplayer")
    _one(browser, "#as-table").click()
    assert _texts(browser, "#matrix thead th") == ["After", FIRST, SECOND]
    browser.execute_script("arguments[0].focus()", _one(browser, f"[aria-label='Delete {FIRST}']"))
    _press(browser, Keys.ENTER, SECOND)
    assert not _one(browser, "#delete .danger").is_enabled(), "the name of another"
    assert "until the library is compacted" in _one(browser, "#delete .stays").text
    _press(browser, *[Keys.BACKSPACE] * len(SECOND), FIRST, Keys.TAB)
    assert _focused(browser) == "Cancel"
    _press(browser, Keys.TAB)
    assert _focused(browser) == "Delete permanently"
    _press(browser, Keys.ENTER)
    _until(browser, lambda b: _one(b, "#delete [role=status]").text == "Deleting …")
    _press(browser, Keys.ESCAPE)
    browser.execute_script("document.getElementById('delete').click()")  # beside the form
    assert _asked(browser), "nobody would see how it ended"
    going.set()
    _until(browser, lambda b: "The disk went away" in _one(b, "#delete [role=alert]").text)
    browser.get_log("browser")  # the refused request itself is logged by the browser
    assert (_focused(browser), len(client.get("/tasks").json())) == ("delete-name", 2)
    _press(browser, Keys.ENTER)
    _until(browser, lambda b: not _asked(b))
    _until(browser, lambda b: _texts(b, "#matrix thead th") == ["After", SECOND])
    assert _texts(browser, "#matrix tbody th")[-1] == SECOND
    assert _one(browser, f"[data-testid=state-{FIRST}]").text == "deleted"
    assert not _one(browser, f"[aria-label='Delete {FIRST}']").is_displayed()
    assert _one(browser, "#learned").text == "1 domain"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#learned-bar span")) == 1
    assert _focused(browser) == "tasks-done"
    own = client.get("/forgetting").json()["matrix_local"]
    assert _one(browser, ".own").text == f"{100 * own[-1][0]:.1f} %"
    browser.get(address)
    assert _wait(browser, "#domains button", 2) == ["All domains", SECOND]


def _refused(_: str) -> DeletionResult:
    raise Unavailable("The disk went away.", 30)
