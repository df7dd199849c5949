"""Takes the pictures of the documentation from a running demo with the headless Chromium of the tests.

::

    make demo                                                        # in another terminal
    python -m tests.take_screenshots http://127.0.0.1:8000           # writes docs/images/*.png

The last picture creates an API key and a user, which close the service: the demo library cannot be used again.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path

import httpx
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from media.scenes.scene_domains import make_scenes
from media.scenes.scene_files import write_scene
from tests.api.browser import FLAGS, screen_size, wait_for, wait_until

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SIZE = (1280, 860)
MAX_BYTES = 200_000
QUERY = "a red scooter in the rain"


def main() -> None:
    """Take all pictures from the service that the command line names."""
    (address,) = sys.argv[1:]
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options)
    try:
        with screen_size(browser, *SIZE):
            _show_search(browser, address)
            _show_dashboard(browser, address)
            _show_video(browser, address)
            _show_domain(browser, address)
            _show_upload(browser, address)
            _show_operations(browser, address)
            _show_access(browser, address)
    finally:
        browser.quit()


def _show_search(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?{httpx.QueryParams(q=QUERY)}")
    wait_for(browser, "[data-testid=result] img", 5)
    _save(browser, "search")


def _show_dashboard(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/admin")
    wait_until(browser, lambda b: "points" in b.find_element(By.ID, "loss-global-note").text)
    _save(browser, "dashboard")


def _show_video(browser: WebDriver, address: str) -> None:
    result = httpx.get(f"{address}/search", params={"q": QUERY}, timeout=60).json()["results"][0]
    browser.get(f"{address}/watch/{result['video_id']}?{httpx.QueryParams(q=QUERY)}")
    wait_for(browser, "#similar-grid img")
    wait_until(browser, lambda b: b.find_element(By.ID, "why-body").text)
    wait_until(browser, lambda b: b.execute_script("return document.querySelector('video').readyState === 4"))
    time.sleep(2)  # the player hides its progress indicator
    _save(browser, "video")


def _show_domain(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/domains/{httpx.get(f'{address}/tasks').json()[0]['id']}")
    wait_for(browser, "[data-testid=video] img", 8)
    wait_for(browser, "[data-testid=confusion]")
    _save(browser, "domain")


def _show_upload(browser: WebDriver, address: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "harbor"
        folder.mkdir()
        rows = ["file,caption"]
        for number, scene in enumerate(make_scenes("sea", train=5, val=0, test=0)):
            write_scene(folder, scene).rename(folder / f"clip-{number}.mp4")
            rows += [f"clip-{number}.mp4,{scene.captions[0]}"] if number else []
        (folder / "captions.csv").write_text("\n".join([*rows, "lost.mp4,a whale dives"]))
        browser.get(f"{address}/admin")
        wait_until(browser, lambda b: b.find_element(By.ID, "add").is_displayed())
        browser.find_element(By.ID, "add").click()
        browser.find_element(By.ID, "f-name").send_keys("harbor")
        browser.find_element(By.ID, "f-folder").send_keys(str(folder))
        wait_until(browser, lambda b: "5 videos" in b.find_element(By.ID, "preview").text)
        browser.execute_script("for (const d of document.querySelectorAll('#preview details')) d.open = true")
        _save(browser, "upload", "#dialog")


def _show_operations(browser: WebDriver, address: str) -> None:
    job = httpx.post(f"{address}/maintenance", json={"kind": "snapshot"}).json()["id"]
    while _job_state(address, job) != "done":
        time.sleep(0.5)
    browser.get(f"{address}/admin")
    wait_until(browser, lambda b: b.find_element(By.ID, "op-disk").text not in ("", "–"))
    browser.execute_script("document.getElementById('operations').scrollIntoView()")
    _save(browser, "operations")


def _job_state(address: str, job: int) -> str:
    jobs = httpx.get(f"{address}/operations").json()["jobs"]
    return next(each["state"] for each in jobs if each["id"] == job)


def _show_access(browser: WebDriver, address: str) -> None:
    key = httpx.post(f"{address}/keys", json={"name": "administrator", "scope": "admin"}).json()["key"]
    with httpx.Client(base_url=address, headers={"X-API-Key": key}) as client:
        client.post("/keys", json={"name": "nightly ingest", "scope": "ingest", "expires_in_days": 90})
        client.post("/keys", json={"name": "website", "scope": "search"})
        client.post("/users", json={"name": "ada", "password": "correct horse battery", "scope": "admin"})
        client.post("/users", json={"name": "bob", "password": "correct horse battery", "scope": "search"})
    browser.get(f"{address}/login?next=/access")
    browser.find_element(By.ID, "name").send_keys("ada")
    browser.find_element(By.ID, "password").send_keys("correct horse battery\n")
    wait_for(browser, "[data-testid=user-bob]")
    _save(browser, "access")


def _save(browser: WebDriver, name: str, element: str = "body") -> None:
    """Write the screen, or an element of it; a large picture with 256 colors."""
    loaded = """
        const shown = [...document.images].filter((image) => image.getBoundingClientRect().top < innerHeight);
        return document.fonts.status === "loaded" && shown.every((image) => image.complete);
    """  # images below the screen are loaded when it is scrolled
    wait_until(browser, lambda b: b.execute_script(loaded))
    time.sleep(1)  # pictures and colors fade in
    png = (
        browser.get_screenshot_as_png()
        if element == "body"
        else browser.find_element(By.CSS_SELECTOR, element).screenshot_as_png
    )
    path = FOLDER / f"{name}.png"
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        image.quantize(256, kmeans=3).save(path, optimize=True)


if __name__ == "__main__":
    main()
