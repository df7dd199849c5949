"""The prefix ``/v1``: each route is registered once, links keep their request's prefix, and pages have no version."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from service.core.settings import Settings

TUS = {"Tus-Resumable": "1.0.0", "Upload-Length": "3"}


@pytest.mark.parametrize(
    "path", ["/livez", "/tasks", "/forgetting", "/videos?limit=1", "/tasks?limit=0", "/videos/x"]
)
def test_both_paths_reach_the_same_route(client: TestClient, path: str) -> None:
    short, versioned = client.get(path), client.get(f"/v1{path}")
    assert short.status_code == versioned.status_code
    body, expected = versioned.json(), short.json()
    if versioned.is_error:
        assert body["instance"] == f"/v1{expected['instance']}"
        body["instance"] = expected["instance"]
    assert body == expected


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_location_keeps_the_prefix_of_the_request(client: TestClient, prefix: str) -> None:
    upload = client.post(f"{prefix}/uploads", headers=TUS)
    assert upload.headers["location"].startswith(f"{prefix}/uploads/upl_")
    assert client.head(upload.headers["location"], headers=TUS).status_code == 200


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_next_link_of_a_page_keeps_the_prefix_of_the_request(
    client: TestClient, configured: Settings, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr("service.tasks.broker.send_probe", lambda task_id: None)
    (configured.media_root / "a.mp4").write_bytes(b"x")
    names = [f"{place} of {prefix.strip('/') or 'short paths'}" for place in ("first", "second")]
    for name in names:
        client.post("/v1/tasks", json={"name": name, "videos": [{"uri": "a.mp4"}]})
    page = client.get(f"{prefix}/tasks", params={"limit": 1, "sort": "-position"})
    following = page.url.join(page.links["next"]["url"])
    assert following.path == f"{prefix}/tasks"
    assert [task["name"] for task in page.json()] == names[1:]
    assert [task["name"] for task in client.get(str(following)).json()] == names[:1]


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/admin", "/v1/login", "/v1/static/logo.svg", "/v1/v1/tasks", "/v2/tasks"]
)
def test_pages_and_other_versions_have_no_prefix(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["type"] == "urn:cinestrata:problem:not-found"
