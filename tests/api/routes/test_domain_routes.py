"""Quality of single domains and results over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from cinestrata_schemas.tasks import TaskSpec
from service.tasks import commands
from tests.api.learned_library import FIRST


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/tasks/nowhere/queries", 404, None),
        ("/videos/nothing/explanation?q=x", 404, None),
        ("/tasks/{task}/queries?worst=1000", 422, "worst"),
        ("/tasks/{task}/queries?best=1", 422, "best"),
        ("/videos/nothing/explanation", 422, "q"),
        ("/videos/nothing/explanation?q=x&k=0", 422, "k"),
        ("/videos/nothing/explanation?q=x&cursor=y", 422, "cursor"),
    ],
)
def test_invalid_request_is_named(
    client: TestClient, library: list[str], path: str, status: int, field: str | None
) -> None:
    answer = client.get(path.format(task=library[0]))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    if field:
        assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_waiting_task_has_no_report(client: TestClient, library: list[str], world: Path) -> None:
    videos = [{"uri": f"{FIRST}/{next((world / FIRST).glob('*.mp4')).name}"}]
    task = commands.create_task(TaskSpec.model_validate({"name": "later", "videos": videos})).task
    answer = client.get(f"/tasks/{task.id}/queries")
    assert (answer.status_code, "queued" in answer.json()["detail"]) == (409, True)


@pytest.mark.parametrize("path", ["/domains", "/watch"])
def test_ids_in_addresses_are_text(client: TestClient, path: str) -> None:
    answer = client.get(f'{path}/"><img src=x onerror=alert(1)>')
    assert answer.status_code == 200
    assert "<img" not in answer.text
    assert "&lt;img" in answer.text
