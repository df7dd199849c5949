"""Search page and library page, also while an earlier release is served, in a real browser."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver

from api.app import create_app
from cinestrata_schemas.tasks import TaskSpec
from service.core.settings import Settings, settings
from service.operations import list_jobs, run_job
from service.tasks import commands, lifecycle
from tests.api.browser import (
    find,
    press,
    refresh_library_page,
    serve,
    texts,
    wait_for,
    wait_for_texts,
    wait_until,
)
from tests.api.learned_library import FIRST, SECOND
from tests.web_files import Handler, WebFiles, send

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


HOSTILE = b"<img src=x onerror=document.title='hacked'>"


@pytest.fixture
def library_page(browser: WebDriver, address: str, client: TestClient) -> Iterator[WebDriver]:
    browser.get(f"{address}/admin")
    wait_until(browser, lambda b: find(b, "#op-disk").text.endswith("B"))
    wait_for(browser, "#releases tbody tr", 2)
    yield browser
    client.post("/releases/newest/serve")


def click(browser: WebDriver, css: str) -> None:
    def scroll_and_click(browser: WebDriver) -> bool:
        button = find(browser, css)
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        return True

    wait_until(browser, scroll_and_click)  # a refresh may replace the element meanwhile


def test_rollback_is_confirmed_with_its_effects_and_taken_back(
    library_page: WebDriver, client: TestClient
) -> None:
    click(library_page, f"[aria-label='Serve the release after {FIRST}']")
    wait_until(library_page, lambda b: texts(b, "#serve .lost li"))
    effects = texts(library_page, "#serve .lost li")
    assert effects[0].startswith("1 domain with ")
    assert effects[1].startswith(f"{SECOND}: ")
    assert client.get("/library").json()["pinned"] is None
    click(library_page, "#serve button[type=submit]")
    wait_until(library_page, lambda b: not b.find_elements(By.ID, "serve"))
    refresh_library_page(library_page)
    wait_until(library_page, lambda b: texts(b, "[data-testid=pinned] p"))
    (notice,) = texts(library_page, "[data-testid=pinned] p")
    assert f"The release after “{FIRST}” is served" in notice
    assert f"not searched: “{SECOND}”" in notice
    searchable = client.get("/library").json()["searchable"]
    assert find(library_page, "#learned-note").text.startswith(f"{searchable} videos can be")
    click(library_page, "[data-testid=pinned] button")
    wait_until(library_page, lambda b: texts(b, "#serve .stays li"))
    click(library_page, "#serve button[type=submit]")
    wait_until(library_page, lambda b: not b.find_elements(By.CSS_SELECTOR, "[data-testid=pinned]"))


def test_snapshot_is_written_downloaded_and_deleted(library_page: WebDriver, client: TestClient) -> None:
    click(library_page, "#op-snapshot")
    wait_until(library_page, lambda b: "queued" in find(b, "#op-jobs").text)
    run_job(list_jobs()[0].id)
    wait_until(library_page, lambda b: "verified" in find(b, "#op-jobs").text)
    wait_for(library_page, "#op-snapshots tbody tr")
    (row,) = library_page.find_elements(By.CSS_SELECTOR, "#op-snapshots tbody tr")
    link = find(row, "a").get_attribute("href") or ""
    assert client.get(link.partition("//")[2].partition("/")[2]).content[:13] == b"snapshot.json"
    click(library_page, "#op-snapshots tbody button")
    library_page.switch_to.alert.accept()
    wait_until(library_page, lambda b: find(b, "#op-snapshots-none").is_displayed())
    assert client.get("/snapshots").json() == []


def test_answer_of_a_webhook_is_shown_as_text(
    library_page: WebDriver, web_files: WebFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINESTRATA_WEBHOOK_TARGETS", f"private+{web_files.url}/")
    settings.cache_clear()

    def receive(request: Handler) -> None:
        request.rfile.read(int(request.headers["Content-Length"]))
        send(request, 400, HOSTILE)

    web_files.handlers["/hook"] = receive
    title = library_page.title
    find(library_page, "#wh-url").send_keys(f"{web_files.url}/hook")
    click(library_page, "#wh-form button[type=submit]")
    wait_until(library_page, lambda b: "whsec_" in find(b, "#wh-secret").text)
    wait_for(library_page, "#wh-list li")
    click(library_page, "#wh-list button[aria-label^=Test]")
    wait_until(library_page, lambda b: any(HOSTILE.decode() in text for text in texts(b, "#wh-list p")))
    click(library_page, "#wh-list summary")
    wait_until(library_page, lambda b: HOSTILE.decode() in texts(b, "#wh-list details code"))
    assert not library_page.find_elements(By.CSS_SELECTOR, "#wh-list img")
    assert library_page.title == title
    click(library_page, "#wh-list button[aria-label^=Remove]")
    wait_until(library_page, lambda b: not texts(b, "#wh-list li"))


@pytest.fixture
def earlier_release(client: TestClient, library: list[str]) -> Iterator[None]:
    """The release of the first domain, served instead of the newest."""
    client.post(f"/releases/{library[0]}/serve")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    yield
    client.post("/releases/newest/serve")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]


def _text(browser: WebDriver, identifier: str) -> str:
    return browser.find_element(By.ID, identifier).text


def test_search_page_offers_only_searched_domains(
    browser: WebDriver, client: TestClient, address: str, earlier_release: None
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


def test_search_in_an_unsearched_domain_is_explained(
    browser: WebDriver, address: str, earlier_release: None
) -> None:
    browser.get(f"{address}/?{urlencode({'q': 'something moves', 'task': SECOND})}")
    (message,) = wait_for_texts(browser, "#message:not([hidden])")
    assert f"“{SECOND}” is not searched." in message
    assert "/releases" not in message
    find(browser, "#message button").click()  # all domains
    wait_until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#results .result"))
