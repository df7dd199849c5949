"""Adding videos on the library page: selection, preview, resumable upload, and the task that it becomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from api.app import create_app
from cinestrata_schemas.tasks import TaskDetails
from service.core.settings import Settings
from service.tasks import commands
from service.tasks.upload_store import UploadWriter
from tests.api.browser import find, serve, texts, wait_for, wait_for_texts, wait_until
from tests.api.learned_library import FIRST

pytestmark = pytest.mark.slow  # drives a browser

MIB = 1024**2


@pytest.fixture
def clips(tmp_path: Path, world: Path) -> Callable[..., Path]:
    """Makes a folder of real videos, padded to a given size."""

    def make(names: list[str], size: int = 0) -> Path:
        folder = tmp_path / "holiday"
        source = next((world / FIRST).glob("*.mp4")).read_bytes()
        for number, name in enumerate(names):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            padding = max(16, size - len(source))
            path.write_bytes(source + padding.to_bytes(4, "big") + b"free" + bytes([number]) * (padding - 8))
        return folder

    return make


@pytest.fixture
def form(browser: WebDriver, address: str) -> Iterator[WebDriver]:
    """The library page with the open form."""
    _open_form(browser, address)
    yield browser
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", _network())
    browser.execute_cdp_cmd("Network.disable", {})
    browser.execute_script("localStorage.clear(); window.onbeforeunload = null")
    # The browser logs refused requests and lost connections.
    browser.get_log("browser")
    for task in commands.list_tasks():
        if task.state not in ("ready", "failed", "cancelled"):
            commands.cancel_task(task.id)


def _open_form(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/admin")
    wait_for(browser, "#tasks > li", 2)
    find(browser, "#add").click()
    wait_until(browser, lambda b: len(texts(b, "#f-into option")) >= 3)


def _network(offline: bool = False) -> dict[str, Any]:
    return {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}


class Valve:
    """Stops the server from storing more than a number of bytes per upload until it is opened."""

    def __init__(self, incoming: Path) -> None:
        incoming.mkdir(parents=True, exist_ok=True)
        self.incoming = incoming
        self.limit = float("inf")

    def write(self, writer: UploadWriter, data: bytes) -> None:
        """Return the replacement of ``UploadWriter.write``."""
        while writer.offset + len(data) > self.limit:
            time.sleep(0.01)
        _write(writer, data)

    def wait_for_bytes(self, browser: WebDriver, count: int) -> None:
        """Wait until the server has stored a number of bytes."""
        wait_until(browser, lambda b: self.stored_bytes >= count)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all uploads."""
        return sum(path.stat().st_size for path in self.incoming.iterdir() if path.suffix != ".json")


_write = UploadWriter.write


@pytest.fixture
def valve(monkeypatch: pytest.MonkeyPatch, configured: Settings) -> Iterator[Valve]:
    """An open valve in the server."""
    valve = Valve(configured.uploads_dir / "incoming")
    monkeypatch.setattr(UploadWriter, "write", lambda writer, data: valve.write(writer, data))
    yield valve
    valve.limit = float("inf")


def _preview(browser: WebDriver, text: str) -> str:
    wait_until(browser, lambda b: text in find(b, "#preview").text)
    return find(browser, "#preview").text


def _send(browser: WebDriver) -> None:
    wait_until(browser, lambda b: find(b, "#send").is_enabled())
    find(browser, "#send").click()


def _cancel(browser: WebDriver) -> bool:
    """Click again if a new row in the list moved the button away from the first click."""
    button = find(browser, "#stop")
    if button.is_displayed():
        button.click()
    return not button.is_displayed()


def _task(name: str) -> TaskDetails:
    return next(task for task in commands.list_tasks() if task.name == name)


def _stored(client: TestClient, task: str) -> dict[str, list[str]]:
    """Captions of a task's videos by file path."""
    videos = client.get(f"/videos?task={task}").json()["videos"]
    return {video["uri"].removeprefix(f"upload://{task}/"): video["captions"] for video in videos}


def test_folder_with_a_table_becomes_a_domain(
    form: WebDriver, clips: Callable[..., Path], client: TestClient, configured: Settings
) -> None:
    hostile = "<img src=x onerror=document.title='taken'>.mp4"
    folder = clips(["day 1/clip.mp4", "day 2/clip.mp4", "Küche 厨房.mp4", hostile])
    (folder / "captions.csv").write_text(
        "\ufefffile;caption;place\nday 1/clip.mp4;a boat;sea\nday 1/clip.mp4;waves;sea\nKüche 厨房.mp4;an egg;\n"
        "lost.mp4;gone;\n"
    )
    (folder / "day 2" / "clip.en.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nspoken words\n")
    (folder / "notes.pdf").write_bytes(b"x")
    find(form, "#f-folder").send_keys(str(folder))
    text = _preview(form, "4 videos with 3 captions and 1 transcript")
    assert "semicolon between the cells, UTF-8, 3 files" in text
    assert "2 videos without captions" in text
    assert "1 row of the table without a file" in text
    assert "1 file not uploaded: not a video" in text
    find(form, "#preview .warn summary").click()
    assert wait_for_texts(form, "#preview .paths li") == ["lost.mp4: not found"]
    assert not form.find_elements(By.CSS_SELECTOR, "#preview img")
    _send(form)
    wait_until(form, lambda b: "Enter a name" in find(b, "#f-name-error").text)
    find(form, "#f-name").send_keys("holiday")
    _preview(form, "new domain “holiday”")
    _send(form)
    wait_for(form, "[data-testid=state-holiday]")
    assert not find(form, "#dialog").is_displayed()
    assert form.title != "taken"
    task = _task("holiday")
    assert _stored(client, task.id) == {
        "holiday/day 1/clip.mp4": ["a boat", "waves"],
        "holiday/day 2/clip.mp4": [],
        "holiday/Küche 厨房.mp4": ["an egg"],
        f"holiday/{hostile}": [],
    }
    for path in _stored(client, task.id):
        sent = (configured.uploads_dir / task.id / path).read_bytes()
        assert sent == (folder / path.removeprefix("holiday/")).read_bytes()
    assert form.execute_script("return localStorage.length") == 0


def test_dropped_files_are_appended(
    form: WebDriver, library: list[str], client: TestClient, clips: Callable[..., Path]
) -> None:
    """Dropped files with a separately chosen table."""
    folder = clips(["new.mp4"])
    content = (folder / "new.mp4").read_bytes().hex()
    form.execute_script(
        "const bytes = Uint8Array.from(arguments[0].match(/../g), (pair) => parseInt(pair, 16));"
        "const transfer = new DataTransfer(); transfer.items.add(new File([bytes], 'new.mp4'));"
        "document.getElementById('drop').dispatchEvent("
        "new DragEvent('drop', { dataTransfer: transfer, bubbles: true, cancelable: true }));",
        content,
    )
    table = folder / "words.tsv"
    table.write_text("video\tdescription\nnew.mp4\ta new clip\n")
    find(form, "#f-table").send_keys(str(table))
    find(form, f"#f-into option[value={library[0]}]").click()
    assert "tab between the cells" in _preview(form, "appended to")
    assert not find(form, "#f-name").is_displayed()
    assert find(form, "#send").text == "Append videos"
    _send(form)
    wait_until(form, lambda b: not find(b, "#dialog").is_displayed())
    append = next(
        task for task in commands.list_tasks() if task.into == library[0] and task.state == "queued"
    )
    assert _stored(client, append.id) == {"new.mp4": ["a new clip"]}


def test_table_in_another_encoding_is_read_on_request(form: WebDriver, clips: Callable[..., Path]) -> None:
    folder = clips(["a.mp4"])
    (folder / "captions.csv").write_bytes("file,caption\na.mp4,Rührei\n".encode("cp1252"))
    find(form, "#f-folder").send_keys(str(folder))
    assert "captions.csv:2" in _preview(form, "is not UTF-8")
    assert not find(form, "#send").is_enabled()
    find(form, "#preview .form-errors button").click()
    assert "CP1252" in _preview(form, "1 video with 1 caption")


def test_upload_continues_after_a_reload_and_a_restart_of_the_server(
    browser: WebDriver,
    client: TestClient,
    library: list[str],
    clips: Callable[..., Path],
    configured: Settings,
    valve: Valve,
) -> None:
    folder = clips(["first.mp4", "second.mp4"], size=24 * MIB)
    valve.limit = 8 * MIB
    with serve(client.app) as url:
        _open_form(browser, url)
        find(browser, "#f-folder").send_keys(str(folder))
        find(browser, "#f-name").send_keys("reloaded")
        _preview(browser, "2 videos")
        _send(browser)
        valve.wait_for_bytes(browser, 12 * MIB)
        find(browser, "#pause").click()
        wait_until(browser, lambda b: find(b, "#pause").text == "Resume")
        storage = browser.execute_script("return { ...localStorage }")
        valve.limit = float("inf")
        browser.get("about:blank")
    stored = valve.stored_bytes
    assert stored >= 12 * MIB
    appended: list[int] = []
    with serve(create_app(configured)) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            UploadWriter, "write", lambda writer, data: (appended.append(len(data)), _write(writer, data))
        )
        browser.get(f"{url}/login")  # another port is another origin, so the state of the page is copied
        browser.execute_script("Object.assign(localStorage, arguments[0])", storage)
        _open_form(browser, url)
        find(browser, "#f-folder").send_keys(str(folder))
        find(browser, "#f-name").send_keys("reloaded")
        _preview(browser, "2 videos")
        _send(browser)
        wait_until(browser, lambda b: not find(b, "#dialog").is_displayed())
        browser.get("about:blank")
    task = _task("reloaded")
    for name in ("first.mp4", "second.mp4"):
        sent = configured.uploads_dir / task.id / "holiday" / name
        assert sent.read_bytes() == (folder / name).read_bytes()
    assert sum(appended) <= 48 * MIB - stored  # no byte is sent again
    commands.cancel_task(task.id)
    browser.get_log("browser")


def test_cancelled_upload_leaves_no_file(form: WebDriver, clips: Callable[..., Path], valve: Valve) -> None:
    folder = clips([f"{number}.mp4" for number in range(8)], size=3 * MIB)
    valve.limit = 2 * MIB
    before, files = valve.stored_bytes, {*valve.incoming.iterdir()}
    find(form, "#f-folder").send_keys(str(folder))
    find(form, "#f-name").send_keys("cancelled")
    _preview(form, "8 videos")
    _send(form)
    valve.wait_for_bytes(form, before + 3 * MIB)
    wait_until(form, _cancel)
    valve.limit = float("inf")
    wait_until(form, lambda b: {*valve.incoming.iterdir()} == files)
    wait_until(form, lambda b: find(b, "#choose").is_displayed())
    assert not any(task.name == "cancelled" for task in commands.list_tasks())
