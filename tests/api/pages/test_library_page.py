"""Search page and library page in a real browser."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from api.app import create_app
from cinestrata_schemas.tasks import TaskSpec
from service.core.settings import Settings
from service.tasks import commands, lifecycle
from tests.api.browser import (
    find,
    press,
    refresh_library_page,
    screen_size,
    serve,
    texts,
    wait_for,
    wait_until,
)
from tests.api.learned_library import FIRST, SECOND

pytestmark = pytest.mark.slow  # drives a browser


def test_clip_search_shows_results_and_captions(
    browser: WebDriver, address: str, configured: Settings
) -> None:
    browser.get(address)
    wait_for(browser, "#domains button", 3)
    clip = next((configured.media_root / FIRST).rglob("*.mp4"))
    find(browser, "#clip").send_keys(str(clip))
    wait_for(browser, "[data-testid=result]", 12)
    assert find(browser, "#headline").text == f"Similar to {clip.name}"
    assert len(texts(browser, "#clip-captions li")) == 3
    assert "decode" in find(browser, "#timing").text
    find(browser, f"#domains [data-task='{SECOND}']").click()
    wait_until(browser, lambda b: set(texts(b, ".result .badge")) == {SECOND})
    assert "decode" in find(browser, "#timing").text
    find(browser, "#q").send_keys("a taxi\n")
    wait_until(browser, lambda b: "route" in find(b, "#timing").text)


def test_click_opens_the_player_and_escape_closes_it(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?q=moves")
    wait_for(browser, "[data-testid=result]", 5)
    find(browser, ".frame .play").click()
    wait_until(browser, lambda b: "h264" in find(b, "#player-facts").text)
    press(browser, Keys.ESCAPE)
    wait_until(browser, lambda b: not find(b, "#player").is_displayed())


def test_keyboard_searches_and_plays_a_result(browser: WebDriver, address: str) -> None:
    browser.get(address)
    wait_for(browser, "#domains button", 3)
    browser.execute_script("document.activeElement.blur()")
    press(browser, "/moves", Keys.ENTER)
    wait_for(browser, "[data-testid=result]", 5)
    browser.execute_script("document.querySelector('.frame .play').focus()")
    press(browser, Keys.ENTER)
    wait_until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".frame.playing"))


def test_form_adds_a_domain_from_an_archive(
    browser: WebDriver, address: str, world: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "clips.zip"
    video = next((world / FIRST).glob("*.mp4"))
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(video, "a.mp4")
        packed.writestr("manifest.jsonl", '{"uri": "a.mp4", "captions": ["a clip"]}')
    browser.get(f"{address}/admin")
    wait_for(browser, "#tasks > li", 2)
    find(browser, "#add").click()
    find(browser, "#f-files").send_keys(str(archive))
    name = find(browser, "#f-name")
    name.send_keys(FIRST)
    find(browser, "#send").click()
    wait_until(browser, lambda b: "Choose another name" in find(b, "#f-name-error").text)
    browser.get_log("browser")  # the browser logs the refused request
    name.clear()
    name.send_keys("uploaded")
    find(browser, "#send").click()
    wait_for(browser, "[data-testid=state-uploaded]")
    assert not find(browser, "#dialog").is_displayed()
    commands.cancel_task(next(task.id for task in commands.list_tasks() if task.name == "uploaded"))


def test_session_cookie_permits_thumbnails_and_events(
    browser: WebDriver, client: TestClient, configured: Settings, library: list[str]
) -> None:
    secured = create_app(configured.model_copy(update={"api_key": SecretStr("s3cret")}))
    secured.state.query_service = client.app.state.query_service  # type: ignore[attr-defined]
    with serve(secured) as url:
        browser.get(f"{url}/?q=moves")
        assert browser.current_url == f"{url}/login?next=/%3Fq%3Dmoves"
        find(browser, ".login summary").click()
        find(browser, "#key").send_keys("s3cret\n")
        wait_for(browser, "#domains button", 3)
        assert browser.current_url == f"{url}/?q=moves"
        wait_for(browser, "[data-testid=result]", 5)
        picture = find(browser, "[data-testid=result] img")
        wait_until(browser, lambda b: picture.get_property("naturalWidth"))
        opened = browser.execute_async_script(
            "const [path, done] = arguments; const source = new EventSource(path);"
            "source.addEventListener('state', (event) => { source.close(); done(JSON.parse(event.data).kind); });"
            "source.addEventListener('error', () => done('error'));",
            f"/tasks/{library[0]}/events",
        )
        assert opened == "state"
        browser.delete_all_cookies()


def test_task_row_shows_live_progress(browser: WebDriver, address: str, world: Path) -> None:
    browser.get(f"{address}/admin")
    spec = {
        "name": "watched",
        "videos": [{"uri": f"{FIRST}/{p.name}"} for p in (world / FIRST).glob("*.mp4")],
    }
    task = commands.create_task(TaskSpec.model_validate(spec)).task
    refresh_library_page(browser)
    wait_for(browser, "[data-testid=progress-watched]")
    claim = lifecycle.claim_probing(task.id, "test")
    assert claim is not None
    with claim:
        for fraction in (0.25, 0.75):
            claim.progress("probing", fraction, done=int(12 * fraction), total=12)
            wait_until(
                browser,
                lambda b, wanted=fraction: (
                    float(find(b, "[data-testid=progress-watched]").get_property("value")) == wanted
                ),
            )
        assert find(browser, "[data-testid=state-watched]").text == "probing"
    commands.cancel_task(task.id)


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
def test_pages_fit_the_width_of_the_screen(browser: WebDriver, address: str, size: tuple[int, int]) -> None:
    with screen_size(browser, *size):
        for path in ("/", "/?q=a+taxi", "/admin"):
            browser.get(address + path)
            wait_for(browser, "#domains button, #tasks > li")
            assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0], path
