"""Texts about failed tasks on the pages: reasons with file names, and controls to retry or delete the task."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from service.celery_worker import probe
from service.tasks import broker
from service.tasks.commands import list_tasks
from tests.api.browser import screen_size, texts, wait_until

pytestmark = pytest.mark.slow  # drives a browser

NAME = "broken"


@pytest.fixture
def broken(client: TestClient, library: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """ID of a task that failed because no file in its archive can be decoded."""
    monkeypatch.setattr(broker, "is_reachable", lambda: True)  # a fault would be the first advice
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("manifest.jsonl", "\n".join(json.dumps({"uri": f"my {n}.mp4"}) for n in range(5)))
        for number in range(5):
            packed.writestr(f"my {number}.mp4", b"no video")
    files = {"archive": ("a.zip", archive.getvalue())}
    task = client.post("/tasks", data={"name": NAME}, files=files).json()["id"]
    probe(task)
    assert client.get(f"/tasks/{task}").json()["state"] == "failed"
    yield task
    client.delete(f"/tasks/{task}")


def test_failed_upload_is_explained_by_its_files_and_deleted(
    browser: WebDriver, address: str, broken: str
) -> None:
    with screen_size(browser, 1440, 900):
        browser.get(f"{address}/admin")
        wait_until(browser, lambda b: "failed" in texts(b, "#advice")[0])
        (advice,) = texts(browser, "#advice")
        assert advice.startswith(
            f"“{NAME}” failed. None of the 5 videos can be used. my 0.mp4 cannot be decoded"
        )
        assert "(and 4 more files)." in advice
        assert "delete the task and add the videos again." in advice
        assert broken not in advice
        assert texts(browser, "#advice-action button") == ["Retry", "Delete"]
        row = f"[data-task={broken}]"
        wait_until(browser, lambda b: len(texts(b, f"{row} .rejects li")) == 5)
        assert texts(browser, f"{row} .rejects code")[0] == "my 0.mp4"
        browser.get(f"{address}/domains/{broken}")
        wait_until(browser, lambda b: "None of the 5 videos" in texts(b, "#failure")[0])
        assert broken not in texts(browser, "main")[0]
        wait_until(browser, lambda b: len(texts(b, "#rejected-list code")) == 5)
        assert texts(browser, "#rejected-list code")[0] == "my 0.mp4"
        assert browser.find_element(By.ID, "retry-domain").is_displayed()
        browser.get(f"{address}/admin")
        wait_until(browser, lambda b: len(texts(b, "#advice-action button")) == 2)
        browser.find_element(By.CSS_SELECTOR, "#advice-action [aria-label^=Delete]").click()
        browser.find_element(By.ID, "delete-name").send_keys(NAME)
        browser.find_element(By.CSS_SELECTOR, "#delete .danger").click()
        wait_until(browser, lambda b: broken not in [task.id for task in list_tasks()])
