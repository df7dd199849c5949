"""The three ways to the first domain that the library page of an empty folder offers, with real workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import manifest_line, write_scene
from tests.api.browser import texts, wait_for, wait_for_texts, wait_until
from tests.e2e.conftest import Machine

pytestmark = pytest.mark.slow  # starts the service and a browser

VIDEOS = 12
FAST = {"CINESTRATA_BACKBONE": "tiny", "CINESTRATA_METHOD": "analytic"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data folder of an empty library, with the folder ``sea`` below its media root."""
    folder = tmp_path_factory.mktemp("first")
    _write_videos(folder / "media" / "sea", "sea")
    return folder


@pytest.fixture(scope="module")
def address(machine: Machine, data: Path) -> Iterator[str]:
    """URL of ``cinestrata up`` on the folder."""
    process, url = machine.up(data, FAST)
    yield url
    process.terminate()
    process.wait()


def _write_videos(folder: Path, domain: str) -> None:
    folder.mkdir(parents=True)
    scenes = make_scenes(domain, train=VIDEOS - 2, val=0, test=2)
    for scene in scenes:
        write_scene(folder, scene)
    lines = (manifest_line(scene).replace(f'"id": "{scene.id}", ', "") for scene in scenes)
    (folder / "manifest.jsonl").write_text("".join(lines))


def _wait_until_ready(browser: WebDriver, domain: str) -> None:
    script = "return document.querySelector(arguments[0])?.textContent"
    state = f"[data-testid='state-{domain}']"
    Machine.until(lambda: browser.execute_script(script, state) == "ready", f"{domain} is learned")


def _wait_until_first(browser: WebDriver, address: str, query: str, domain: str) -> None:
    """Search until the first result is of a domain: the API loads the release of a ready task in its next poll."""

    def is_first() -> bool:
        browser.get(f"{address}/?q={query.replace(' ', '+')}")
        wait_for(browser, "[data-testid=result]", 5)
        return browser.find_element(By.CSS_SELECTOR, "[data-testid=result] .badge").text == domain

    Machine.until(is_first, f"{domain} is found by {query!r}")


def test_empty_library_offers_three_ways_to_the_first_domain(browser: WebDriver, address: str) -> None:
    browser.get(address)
    wait_for(browser, "#message a")
    browser.find_element(By.CSS_SELECTOR, "#message a").click()
    assert len(wait_for_texts(browser, ".ways li", 3)) == 3

    browser.find_element(By.ID, "first-samples").click()
    _wait_until_ready(browser, "street")
    assert not browser.find_element(By.ID, "tasks-empty").is_displayed()


def test_folder_on_the_server_becomes_a_domain(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/admin")
    wait_for(browser, "#tasks > li")
    browser.find_element(By.ID, "follow").click()
    browser.find_element(By.ID, "follow-send").click()
    assert texts(browser, "#follow-form .field-error") == ["Enter a folder.", "Enter a name for the domain."]
    browser.find_element(By.ID, "follow-source").send_keys("lake")
    browser.find_element(By.ID, "follow-name").send_keys("sea")
    browser.find_element(By.ID, "follow-send").click()
    assert "does not exist below the media root" in wait_for_texts(browser, "#follow-source-error")[0]
    browser.find_element(By.ID, "follow-source").clear()
    browser.find_element(By.ID, "follow-source").send_keys("sea")
    browser.find_element(By.ID, "follow-send").click()
    wait_for(browser, "[data-testid=sync-sea]")
    _wait_until_ready(browser, "sea")
    _wait_until_first(browser, address, "a turtle swims in the sea", "sea")


def test_uploaded_files_become_a_domain(browser: WebDriver, address: str, tmp_path: Path) -> None:
    _write_videos(tmp_path / "kitchen", "kitchen-table")
    browser.get(f"{address}/admin")
    wait_for(browser, "#tasks > li")
    browser.find_element(By.ID, "add").click()
    files = "\n".join(str(path) for path in sorted((tmp_path / "kitchen").iterdir()))
    browser.find_element(By.ID, "f-files").send_keys(files)
    browser.find_element(By.ID, "f-name").send_keys("kitchen")
    wait_until(browser, lambda b: f"{VIDEOS} videos" in b.find_element(By.ID, "preview").text)
    wait_until(browser, lambda b: b.find_element(By.ID, "send").is_enabled())
    browser.find_element(By.ID, "send").click()
    _wait_until_ready(browser, "kitchen")
    _wait_until_first(browser, address, "a cooking pot boils next to a loaf of bread", "kitchen")
