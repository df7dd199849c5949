"""Deletion over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from service.core.settings import Settings


def _found(client: TestClient) -> dict[str, str]:
    """Return the task of each video that a search finds."""
    return {
        result["video_id"]: result["task_id"]
        for result in client.get("/search", params={"q": "a ball", "k": 100}).json()["results"]
    }


def test_videos_are_deleted_singly_and_in_lists(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    before = _found(client)
    first, second, third, *_, other = sorted(before, key=before.__getitem__)
    one = client.get(f"/videos/{first}").json()
    answer = client.delete(f"/videos/{first}")
    assert (answer.status_code, answer.json()) == (200, {"deleted": [first], "not_found": []})
    for path in (f"/videos/{first}", f"/videos/{first}/thumbnail", f"/videos/{first}/stream"):
        assert client.get(path).status_code == 404
    assert client.get(f"/videos/{first}/similar").status_code == 404
    assert (configured.media_root / one["uri"]).exists(), "files below the media root are kept"
    assert _found(client).keys() == before.keys() - {first}
    again = client.delete(f"/videos/{first}")
    assert again.status_code == client.get(f"/videos/{first}").status_code == 404
    assert again.json() == client.get(f"/videos/{first}").json()
    task = before[second]
    theirs = client.request("DELETE", f"/tasks/{task}/videos", json={"videos": [second, third, "nobody"]})
    assert theirs.json() == {"deleted": [second, third], "not_found": ["nobody"]}
    apart = client.request("DELETE", f"/tasks/{task}/videos", json={"videos": [other]})
    assert apart.json() == {"deleted": [], "not_found": [other]}
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    assert _found(client).keys() == before.keys() - {first, second, third}
    shards = {shard["task_id"]: shard for shard in client.get("/shards").json()["shards"]}
    assert (shards[task]["deleted"], shards[task]["degraded"]) == (3, None)


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/tasks/nowhere/videos", {"videos": ["a"]}, 404, None),
        ("/tasks/x/videos", {"videos": []}, 422, "videos"),
        ("/tasks/x/videos", {"videos": ["a", "b\0"]}, 422, "videos[1]"),
        ("/tasks/x/videos", {"videos": ["two words"]}, 422, "videos[0]"),
        ("/tasks/x/videos", {"video": ["a"]}, 422, "videos"),
        ("/tasks/x/videos", {}, 422, "videos"),
        ("/tasks/x/videos", [], 422, "body"),
    ],
)
def test_invalid_deletion_request_is_named(
    client: TestClient, path: str, body: object, status: int, field: str | None
) -> None:
    answer = client.request("DELETE", path, json=body)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert field is None or field in {error["field"] for error in answer.json()["errors"]}
