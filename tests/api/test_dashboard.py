"""The dashboard in a real browser: search, watch a task, read a cell of the matrix."""

from __future__ import annotations

import shutil
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from pydantic import SecretStr
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait
from sqlalchemy import select

from api.app import create_app
from benchmarks.data.world import DOMAINS
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.schemas import TaskSpec
from service.core.settings import Settings
from service.tasks import commands, lifecycle

FIRST, SECOND = list(DOMAINS)[:2]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1440,900",
)


@contextmanager
def _served(app: Any) -> Iterator[str]:
    """An application whose query service runs already, on a real port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="module")
def address(client: TestClient, library: list[str]) -> Iterator[str]:
    """The application, for the browser."""
    with _served(client.app) as url:
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """Headless Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium on this machine: `make test` installs it where it may")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture(autouse=True)
def no_errors(browser: WebDriver) -> Iterator[None]:
    """Whatever a test does, the page must not complain in the console."""
    browser.get_log("browser")
    yield
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not complaints


def _until(browser: WebDriver, condition: Callable[[WebDriver], Any]) -> None:
    """Wait; elements that are replaced meanwhile, as results are, are looked up again."""
    WebDriverWait(browser, 20, ignored_exceptions=[StaleElementReferenceException]).until(condition)


def _texts(browser: WebDriver, css: str) -> list[str]:
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, css)]


def _wait(browser: WebDriver, css: str, count: int = 1) -> list[str]:
    """Texts of elements, once there are enough of them."""
    _until(browser, lambda b: len(_texts(b, css)) >= count)
    return _texts(browser, css)


def test_a_search_shows_videos(browser: WebDriver, address: str) -> None:
    browser.get(address)
    _wait(browser, "#domains button", 3)
    browser.find_element(By.ID, "q").send_keys("a taxi moves left\n")
    results = _wait(browser, "[data-testid=result]", 12)
    assert any(FIRST in text for text in results)
    assert "ms" in browser.find_element(By.ID, "timing").text
    picture = browser.find_element(By.CSS_SELECTOR, "[data-testid=result] img")
    _until(browser, lambda b: picture.get_property("naturalWidth"))
    browser.find_element(By.CSS_SELECTOR, f"#domains [data-task='{SECOND}']").click()
    _until(browser, lambda b: set(_texts(b, ".result .badge")) == {SECOND})


def test_a_clip_finds_videos_and_words(browser: WebDriver, address: str, configured: Settings) -> None:
    browser.get(address)
    _wait(browser, "#domains button", 3)
    clip = next((configured.media_root / FIRST).rglob("*.mp4"))
    browser.find_element(By.ID, "clip").send_keys(str(clip))
    _wait(browser, "[data-testid=result]", 12)
    assert clip.name in browser.find_element(By.ID, "legend").text
    assert len(_texts(browser, "#legend li")) == 4
    assert "decode" in browser.find_element(By.ID, "timing").text
    browser.find_element(By.CSS_SELECTOR, f"#domains [data-task='{SECOND}']").click()
    _until(browser, lambda b: set(_texts(b, ".result .badge")) == {SECOND})
    assert "decode" in browser.find_element(By.ID, "timing").text
    browser.find_element(By.ID, "q").send_keys("a taxi\n")
    _until(browser, lambda b: "route" in b.find_element(By.ID, "timing").text)


def test_a_hover_plays_the_video(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?q=moves")
    _wait(browser, "[data-testid=result]", 5)
    frame = browser.find_element(By.CSS_SELECTOR, ".frame")
    webdriver.ActionChains(browser).move_to_element(frame).perform()
    _until(browser, lambda b: "playing" in (frame.get_attribute("class") or ""))
    video = frame.find_element(By.TAG_NAME, "video")
    _until(browser, lambda b: video.get_property("currentTime"))


def test_a_click_opens_the_player_and_escape_closes_it(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?q=moves")
    _wait(browser, "[data-testid=result]", 5)
    browser.find_element(By.CSS_SELECTOR, ".frame .play").click()
    _until(browser, lambda b: "h264" in b.find_element(By.ID, "player-facts").text)
    webdriver.ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    _until(browser, lambda b: not b.find_element(By.ID, "player").is_displayed())


def test_keys_alone_reach_a_result_and_play_it(browser: WebDriver, address: str) -> None:
    browser.get(address)
    _wait(browser, "#domains button", 3)
    browser.execute_script("document.activeElement.blur()")
    webdriver.ActionChains(browser).send_keys("/moves", Keys.ENTER).perform()
    _wait(browser, "[data-testid=result]", 5)
    browser.execute_script("document.querySelector('.frame .play').focus()")
    webdriver.ActionChains(browser).send_keys(Keys.ENTER).perform()
    _until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".frame.playing"))


def test_a_caption_stays_text(browser: WebDriver, address: str, library: list[str]) -> None:
    hostile = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
    with session_scope(write=True) as session:
        videos = session.scalars(select(Video).where(Video.task_id == library[0])).all()
        kept = {video.id: video.captions for video in videos}
        for video in videos:
            video.captions = [hostile]
    try:
        browser.get(f"{address}/?q=moves&task={FIRST}")
        assert hostile in _wait(browser, ".result .caption", 5)
        assert not browser.find_elements(By.CSS_SELECTOR, ".caption *")
        assert browser.title != "taken"
    finally:
        with session_scope(write=True) as session:
            for video in session.scalars(select(Video).where(Video.task_id == library[0])):
                video.captions = kept[video.id]


def test_a_domain_is_added_by_its_archive(
    browser: WebDriver, address: str, world: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "clips.zip"
    video = next((world / FIRST).glob("*.mp4"))
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(video, "a.mp4")
        packed.writestr("manifest.jsonl", '{"uri": "a.mp4", "captions": ["a clip"]}')
    browser.get(f"{address}/admin")
    _wait(browser, "#tasks > li", 2)
    browser.find_element(By.ID, "add").click()
    browser.find_element(By.ID, "f-archive").send_keys(str(archive))
    name = browser.find_element(By.ID, "f-name")
    name.send_keys(FIRST)
    browser.find_element(By.ID, "send").click()
    _until(browser, lambda b: "Choose another name" in b.find_element(By.ID, "f-name-error").text)
    browser.get_log("browser")  # the refused request itself is logged by the browser
    name.clear()
    name.send_keys("uploaded")
    browser.find_element(By.ID, "send").click()
    _wait(browser, "[data-testid=state-uploaded]")
    assert not browser.find_element(By.ID, "dialog").is_displayed()
    commands.cancel_task(next(task.id for task in commands.list_tasks() if task.name == "uploaded"))


def test_signed_in_by_key_pictures_and_events_arrive(
    browser: WebDriver, client: TestClient, configured: Settings, library: list[str]
) -> None:
    secured = create_app(configured.model_copy(update={"api_key": SecretStr("s3cret")}))
    secured.state.query_service = client.app.state.query_service  # type: ignore[attr-defined]
    with _served(secured) as url:
        browser.get(f"{url}/?q=moves")
        assert browser.current_url == f"{url}/login"
        browser.find_element(By.ID, "key").send_keys("s3cret\n")
        _wait(browser, "#domains button", 3)
        browser.get(f"{url}/?q=moves")
        _wait(browser, "[data-testid=result]", 5)
        picture = browser.find_element(By.CSS_SELECTOR, "[data-testid=result] img")
        _until(browser, lambda b: picture.get_property("naturalWidth"))
        opened = browser.execute_async_script(
            "const [path, done] = arguments; const source = new EventSource(path);"
            "source.addEventListener('state', (event) => { source.close(); done(JSON.parse(event.data).kind); });"
            "source.addEventListener('error', () => done('error'));",
            f"/tasks/{library[0]}/events",
        )
        assert opened == "state"
        browser.delete_all_cookies()


def test_the_theme_is_remembered(browser: WebDriver, address: str) -> None:
    browser.get(address)
    ground = "return getComputedStyle(document.documentElement).backgroundColor"
    before = browser.execute_script(ground)
    browser.find_element(By.ID, "theme").click()
    after = browser.execute_script(ground)
    assert after != before
    browser.get(f"{address}/admin")
    assert browser.execute_script(ground) == after
    browser.execute_script("localStorage.clear()")


def test_an_empty_query_says_what_to_do(browser: WebDriver, address: str) -> None:
    browser.get(address)
    _wait(browser, "#domains button", 3)
    browser.execute_script("document.getElementById('search').requestSubmit()")
    _until(browser, lambda b: "The query is empty" in b.find_element(By.ID, "message").text)
    browser.get_log("browser")  # the refused request itself is logged by the browser


def test_a_cell_of_the_matrix_is_what_the_api_says(
    browser: WebDriver, address: str, client: TestClient
) -> None:
    browser.get(f"{address}/admin")
    _wait(browser, "#heat .heatmaplayer")
    browser.find_element(By.ID, "as-table").click()
    measures = client.get("/forgetting").json()
    cell = browser.find_element(By.CSS_SELECTOR, "[data-testid=cell-2-1]").text
    assert cell == f"{100 * measures['matrix_local'][1][0]:.1f} %"
    assert browser.find_element(By.CSS_SELECTOR, "[data-testid=bwf-local]").text == "0.0"
    browser.find_element(By.CSS_SELECTOR, "[data-gallery=global]").click()
    union = f"{100 * measures['matrix_global'][1][0]:.1f} %"
    _until(browser, lambda b: b.find_element(By.CSS_SELECTOR, "[data-testid=cell-2-1]").text == union)


def test_a_task_that_could_not_be_measured_says_so(
    browser: WebDriver, address: str, library: list[str]
) -> None:
    with session_scope(write=True) as session:
        task = session.get_one(Task, library[0])
        name, before = task.name, task.progress
        task.progress = {**before, "unmeasured": "Its worker stopped."}
    try:
        browser.get(f"{address}/admin")
        facts = f"[data-testid='facts-{name}']"
        _wait(browser, facts)
        _until(browser, lambda b: "not measured: Its worker stopped." in _texts(b, facts)[0])
    finally:
        with session_scope(write=True) as session:
            session.get_one(Task, library[0]).progress = before


def test_a_task_is_watched_while_it_is_worked_on(browser: WebDriver, address: str, world: Path) -> None:
    browser.get(f"{address}/admin")
    spec = {
        "name": "watched",
        "videos": [{"uri": f"{FIRST}/{p.name}"} for p in (world / FIRST).glob("*.mp4")],
    }
    task = commands.create_task(TaskSpec.model_validate(spec)).task
    _wait(browser, "[data-testid=progress-watched]")
    claim = lifecycle.claim_probing(task.id, "test")
    assert claim is not None
    with claim:
        for fraction in (0.25, 0.75):
            claim.progress("probing", fraction, done=int(12 * fraction), total=12)
            _until(
                browser,
                lambda b, wanted=fraction: (
                    float(
                        b.find_element(By.CSS_SELECTOR, "[data-testid=progress-watched]").get_property(
                            "value"
                        )
                    )
                    == wanted
                ),
            )
        assert browser.find_element(By.CSS_SELECTOR, "[data-testid=state-watched]").text == "probing"
    commands.cancel_task(task.id)


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)])
@pytest.mark.parametrize("path", ["/", "/?q=a+taxi", "/admin"])
def test_nothing_is_wider_than_the_screen(
    browser: WebDriver, address: str, path: str, size: tuple[int, int]
) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 500},
    )
    try:
        browser.get(address + path)
        _wait(browser, "#domains button, #tasks > li")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= size[0]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
