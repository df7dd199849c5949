"""Rollback to an earlier release and forward again over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert
from tests.api.learned_library import FIRST, SECOND

QUERY = {"q": "something moves", "k": 50}


@pytest.fixture
def releases(client: TestClient, library: list[str]) -> Iterator[list[str]]:
    """Release IDs in learning order; the newest is served before and after the test."""
    yield [release["id"] for release in client.get("/releases").json()["releases"]]
    client.post("/releases/newest/serve")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]


def serve(client: TestClient, release: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/releases/{release}/serve", json=body or None)
    assert answer.status_code == 200, answer.text
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    return dict(answer.json())


def found_tasks(client: TestClient) -> set[str]:
    return {result["task"] for result in client.get("/search", params=QUERY).json()["results"]}


def test_preview_names_the_domains_that_become_unsearchable(
    client: TestClient, library: list[str], releases: list[str]
) -> None:
    preview = serve(client, releases[0], dry_run=True)
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
        assert serve(client, name, dry_run=True)["release"] == releases[0]


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
    serve(client, releases[0], dry_run=True)
    assert client.get("/library").json()["open_alerts"] == 1
    serve(client, releases[0])  # the first release cannot have lost an earlier domain
    assert client.get("/library").json()["open_alerts"] == 0
