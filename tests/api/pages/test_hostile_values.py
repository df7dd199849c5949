"""Every page with hostile values in every text that it shows: no script runs, and no text becomes an element."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from sqlalchemy import select

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Sync
from service.catalog.tables import Release, Task, Video
from tests.api.browser import serve, wait_for, wait_until
from tests.catalog_rows import count_changes

pytestmark = pytest.mark.slow  # drives a browser

MARK = "x-hostile"
HOSTILE = [
    f"<img src=x class={MARK} onerror=document.title='taken'>",
    f"</script><script class={MARK}>document.title='taken'</script>",
    f"\"><svg class={MARK} onload=document.title='taken'>",
    f"'--><iframe class={MARK} srcdoc='<script>parent.document.title=1</script>'>",
    f"{{{{7*7}}}}${{7*7}}<b class={MARK}>",
    "javascript:document.title='taken'",
]


@pytest.fixture(autouse=True)
def no_console_errors(browser: WebDriver) -> Iterator[None]:
    """Fail a test if a page violates the policy or raises an error; hostile paths name files that do not exist."""
    browser.get("about:blank")
    browser.get_log("browser")
    yield
    entries = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [entry for entry in entries if entry["source"] != "network"] == []


@pytest.fixture(scope="module")
def hostile_library(client: TestClient, library: list[str]) -> str:
    """ID of a learned domain whose texts in the catalog are all hostile, even where the API would refuse them."""
    joined = " ".join(HOSTILE)
    with session_scope(write=True) as session:
        for number, task in enumerate(session.scalars(select(Task).order_by(Task.position))):
            task.name = HOSTILE[number][:80]
            task.method = HOSTILE[number][:64]
            task.error, task.error_hint = joined, joined
        for number, video in enumerate(session.scalars(select(Video))):
            text = HOSTILE[number % len(HOSTILE)]
            video.captions = [text, joined]
            video.extra = {text: joined, "list": HOSTILE, "place": text}
            video.uri = f"{text}/{number}.mp4"
            video.codec, video.container = text[:64], text[:64]
        count_changes(session, session.scalars(select(Video)))
        template = session.get_one(Task, library[0])
        for number, text in enumerate(HOSTILE):
            failed = Task(id=f"tsk_hostile{number}", position=1000 + number, name=f"{number} {text}"[:80])
            failed.method, failed.state = text[:64], "failed" if number % 2 else "queued"
            failed.error, failed.error_hint, failed.created_at = joined, text, template.created_at
            failed.progress, failed.counts = {"stage": "failed"}, {"videos": 1, "rejected": 1}
            failed.videos = [Video(id=f"rejected-{number}", uri=text, status="rejected", reason=joined)]
            sync = Sync(id=f"sync_{number}", name=f"{number} {text}", source=text, every_seconds=60)
            sync.vanished, sync.captions_from_names, sync.error = "keep", False, joined
            sync.created_at = sync.next_run_at = now(session)
            session.add_all([failed, sync])
        for release in session.scalars(select(Release)):
            release.backbone = joined[:255]
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    return library[0]


@pytest.fixture(scope="module")
def hostile_address(client: TestClient, hostile_library: str) -> Iterator[str]:
    """URL of the application."""
    with serve(client.app) as url:
        yield url


def _require_harmless(browser: WebDriver, page: str) -> None:
    assert "taken" not in browser.title or "<img" in browser.title, page
    created = browser.find_elements(By.CSS_SELECTOR, f".{MARK}, img[src=x], [onerror], [onload], iframe")
    assert created == [], page
    links = browser.execute_script(
        "return [...document.querySelectorAll('a[href], [src], form[action]')]"
        ".map(e => e.href || e.src || e.action).filter(u => String(u).startsWith('javascript:'))"
    )
    assert links == [], page


@pytest.mark.parametrize(
    ("path", "element"),
    [
        ("/?q=cell", "[data-testid=result]"),
        (f"/?q={quote(HOSTILE[0])}", "[data-testid=result]"),
        ("/admin", "h1"),
        ("/domains/{task}", "[data-testid=video]"),
        ("/watch/{video}?q=" + quote(HOSTILE[0]), "h1"),
        (f"/watch/{quote(HOSTILE[0], safe='')}", "body"),
        (f"/login?next={quote('javascript:alert(1)')}", "body"),
        ("/docs", "body"),
    ],
)
def test_hostile_values_are_shown_as_text(
    browser: WebDriver, hostile_address: str, hostile_library: str, path: str, element: str
) -> None:
    with session_scope() as session:
        video = session.scalars(
            select(Video.id).where(Video.task_id == hostile_library, Video.status == "accepted").limit(1)
        ).one()
    browser.get(hostile_address + path.format(task=hostile_library, video=video))
    wait_for(browser, element)
    wait_until(browser, lambda b: b.execute_script("return document.readyState") == "complete")
    _require_harmless(browser, path)
    if "result" in element or "video]" in element or path == "/admin":
        wait_until(browser, lambda b: f"class={MARK}" in b.find_element(By.TAG_NAME, "body").text)
    for opener in browser.find_elements(By.CSS_SELECTOR, "details > summary, [aria-expanded=false]"):
        browser.execute_script("arguments[0].click()", opener)
    _require_harmless(browser, path)
