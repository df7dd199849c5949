"""The controls of the pages for each role, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from cinestrata_schemas.access import UserSpec
from cinestrata_schemas.syncs import SyncSpec
from cinestrata_schemas.tasks import TaskSpec
from service.access.users import create_user
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import Settings
from service.library.deletion import delete_task
from service.syncs.registered_syncs import register_sync, remove_sync
from service.tasks.commands import create_task
from service.tasks.lifecycle.state_machine import set_state
from tests.api.browser import find, texts, wait_for, wait_until

pytestmark = pytest.mark.slow  # drives a browser

PASSWORD = "correct horse battery"
ROLES = ("search", "ingest", "admin")


@pytest.fixture
def users(client: TestClient, open_service: None) -> None:
    """A user for each role, with the role's name."""
    for role in ROLES:
        create_user(UserSpec.model_validate({"name": role, "password": PASSWORD, "scope": role}))


def sign_in(browser: WebDriver, address: str, role: str) -> None:
    browser.get(f"{address}/login")
    browser.delete_all_cookies()
    find(browser, "#name").send_keys(role)
    find(browser, "#password").send_keys(PASSWORD + "\n")
    wait_for(browser, "#q")


LOCKED = {  # page → controls that need a scope
    "/admin": {"#add": "ingest", "#follow": "ingest"},
    "/watch": {"#edit": "ingest", "#delete-video": "ingest"},
}
HIDDEN = {
    "/admin": {
        "#tasks [aria-label^=Retry]": "ingest",
        "#tasks [aria-label^=More]": "ingest",
        "#syncs [aria-label^=Remove]": "ingest",
        "#releases [aria-label^=Serve]": "admin",
        "#operations": "admin",
        ".bar nav a[href='/access']": "admin",
    },
    "/domains": {
        "#append-link": "ingest",
        "#delete-domain": "ingest",
        "#video-grid [aria-label^=Edit]": "ingest",
        "#video-grid [aria-label^=Delete]": "ingest",
    },
}


@pytest.mark.parametrize("role", ROLES)
def test_controls_are_those_of_the_role(
    browser: WebDriver,
    address: str,
    users: None,
    library: list[str],
    client: TestClient,
    followed_folder: None,
    failed_task: None,
    role: str,
) -> None:
    sign_in(browser, address, role)
    video = client.get(f"/videos?task={library[0]}", headers=_cookie(browser)).json()["videos"][0]["id"]
    paths = {"/admin": "/admin", "/domains": f"/domains/{library[0]}", "/watch": f"/watch/{video}"}
    ready = {"/admin": "#syncs tbody tr", "/domains": "#video-grid li", "/watch": "#similar-grid li"}
    for page, path in paths.items():
        browser.get(address + path)
        wait_for(browser, ready[page])
        if page == "/admin":
            wait_for(browser, "#tasks > li", 3)
            wait_for(browser, "#releases tbody tr", 2)
        for css, scope in LOCKED.get(page, {}).items():
            control = find(browser, css)
            assert control.is_enabled() == _includes(role, scope), css
            assert bool(control.get_attribute("title")) != control.is_enabled()
        for css, scope in HIDDEN.get(page, {}).items():
            shown = [each for each in browser.find_elements(By.CSS_SELECTOR, css) if each.is_displayed()]
            assert bool(shown) == _includes(role, scope), css
        assert bool(texts(browser, "#role-note")) == (role == "search")


@pytest.fixture
def followed_folder(configured: Settings, library: list[str]) -> Iterator[None]:
    """A registered sync, which no worker runs."""
    (configured.media_root / "inbox").mkdir(exist_ok=True)
    spec = SyncSpec.model_validate({"name": "inbox", "source": "inbox", "every_seconds": 3600})
    sync = register_sync(spec)
    yield
    remove_sync(sync.id)


@pytest.fixture
def failed_task(configured: Settings, library: list[str]) -> Iterator[None]:
    """A task that failed."""
    video = next(configured.media_root.rglob("*.mp4")).relative_to(configured.media_root)
    spec = {"name": "failed", "videos": [{"uri": str(video), "captions": ["a"]}]}
    task = create_task(TaskSpec.model_validate(spec)).task.id
    with session_scope(write=True) as session:
        set_state(session, session.get_one(Task, task), "failed", error="The disk is full.")
    yield
    delete_task(task)


def test_failed_task_offers_the_method_that_fits(
    browser: WebDriver, address: str, configured: Settings, library: list[str], client: TestClient
) -> None:
    video = next(configured.media_root.rglob("*.mp4")).relative_to(configured.media_root)
    spec = {"name": "unfit", "method": "finetune", "videos": [{"uri": str(video), "captions": ["a"]}]}
    task = create_task(TaskSpec.model_validate(spec)).task.id
    with session_scope(write=True) as session:
        row = session.get_one(Task, task)
        set_state(session, row, "failed", error="The method does not fit.", hint="Use another.")
        row.remedy = {"name": "retry_task", "id": row.id, "body": {"method": "zero_shot", "settings": {}}}
    try:
        browser.get(f"{address}/admin")
        css = f"[data-task={task}]"
        wait_until(browser, lambda b: "Retry with zero_shot" in texts(b, f"{css} .act button"))
        assert "Retry" not in texts(browser, f"{css} .act button")
        assert texts(browser, f"{css} .hint")[0].startswith("The method finetune doesn't match the library.")
        find(browser, f"{css} .act [aria-label^=Retry]").click()
        wait_until(browser, lambda b: client.get(f"/tasks/{task}").json()["state"] == "queued")
        assert client.get(f"/tasks/{task}").json()["method"] == "zero_shot"
    finally:
        browser.get("about:blank")  # the page would read the deleted task
        client.post(f"/tasks/{task}/cancel")
        delete_task(task)


def _includes(role: str, scope: str) -> bool:
    return ROLES.index(role) >= ROLES.index(scope)


def _cookie(browser: WebDriver) -> dict[str, str]:
    (cookie,) = browser.get_cookies()
    return {"Cookie": f"{cookie['name']}={cookie['value']}"}
