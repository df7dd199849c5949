"""The recall matrix, rollback to an earlier release, and the quality of domains over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cinestrata_schemas.tasks import TaskSpec
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert
from service.catalog.tables import Task
from service.tasks import commands
from tests.api.learned_library import FIRST, SECOND


def test_current_version_is_not_sent_again(client: TestClient, library: list[str]) -> None:
    path = "/forgetting"
    first = client.get(path)
    tag = {"If-None-Match": first.headers["etag"]}
    again = client.get(path, headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get(path, headers={"If-None-Match": f'"other", {tag["If-None-Match"]}'}).status_code == 304
    other = client.get(path, params={"first_domain": 2}, headers=tag)
    assert (other.status_code, other.headers["etag"] != first.headers["etag"]) == (200, True)
    with session_scope(write=True) as session:
        task = session.get_one(Task, library[0])
        task.held_out = "given" if task.held_out == "derived" else "derived"
    changed = client.get(path, headers=tag)
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]


def test_rows_and_columns_of_the_matrix_are_bounded(client: TestClient, library: list[str]) -> None:
    complete = client.get("/forgetting")
    tag = {"If-None-Match": complete.headers["etag"]}
    shown = client.get("/forgetting", params={"rows": 1, "first_domain": 2, "limit": 1}, headers=tag).json()
    assert (shown["task_ids"], shown["domains"], len(shown["matrix_global"])) == (library[1:], 2, 1)
    assert shown["matrix_global"][0] == complete.json()["matrix_global"][1][1:]
    for parameters in (
        {"rows": 0},
        {"limit": 1001},
        {"first_domain": 0},
        {"first_release": 0},
        {"domain": 1},
    ):
        answer = client.get("/forgetting", params=parameters)
        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == list(parameters)


QUERY = {"q": "something moves", "k": 50}


@pytest.fixture
def releases(client: TestClient, library: list[str]) -> Iterator[list[str]]:
    """Release IDs in learning order; the newest is served before and after the test."""
    yield [release["id"] for release in client.get("/releases").json()["releases"]]
    client.post("/releases/newest/serve")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]


def serve_release(client: TestClient, release: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/releases/{release}/serve", json=body or None)
    assert answer.status_code == 200, answer.text
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    return dict(answer.json())


def found_tasks(client: TestClient) -> set[str]:
    return {result["task"] for result in client.get("/search", params=QUERY).json()["results"]}


def test_preview_names_the_domains_that_become_unsearchable(
    client: TestClient, library: list[str], releases: list[str]
) -> None:
    preview = serve_release(client, releases[0], dry_run=True)
    videos = client.get(f"/tasks/{library[1]}").json()["counts"]["accepted"]
    change = {"task_id": library[1], "task": SECOND, "videos": videos, "appended": 0}
    assert preview["unsearchable"] == {"domains": 1, "videos": videos, "appended": 0, "first": [change]}
    assert preview["searchable_again"]["domains"] == 0
    assert (preview["before"], preview["newest"], preview["pinned"]) == (releases[1], releases[1], True)
    assert (preview["dry_run"], preview["changed"]) == (True, True)
    assert found_tasks(client) == {FIRST, SECOND}
    assert client.get("/library").json()["pinned"] is None


def test_release_is_found_by_prefix_and_by_domain(
    client: TestClient, library: list[str], releases: list[str]
) -> None:
    for name in (releases[0][:8], FIRST, library[0]):
        assert serve_release(client, name, dry_run=True)["release"] == releases[0]


@pytest.mark.parametrize("name", ["0" * 64, "nothing", "deadbeef", "%00", "%F0%9F%90%9F", "x" * 5000])
def test_unknown_release_is_refused(client: TestClient, releases: list[str], name: str) -> None:
    answer = client.post(f"/releases/{name}/serve", json={"dry_run": True})
    assert answer.status_code == 404
    assert "There is no re" in answer.json()["detail"]


def test_unknown_option_is_refused(client: TestClient, releases: list[str]) -> None:
    answer = client.post(f"/releases/{releases[0]}/serve", json={"dryrun": True})
    assert answer.status_code == 422
    assert client.get("/library").json()["pinned"] is None


def test_alerts_are_those_of_the_served_release_at_once(client: TestClient, releases: list[str]) -> None:
    with session_scope(write=True) as session:
        session.add(
            Alert(
                kind="forgetting_global", open_key="forgetting_global:t", value=0.5, threshold=0.15,
                raised_at=now(session),
            )
        )  # fmt: skip
    serve_release(client, releases[0], dry_run=True)
    assert client.get("/library").json()["open_alerts"] == 1
    serve_release(client, releases[0])  # the first release cannot have lost an earlier domain
    assert client.get("/library").json()["open_alerts"] == 0


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
