"""The audit log over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from service.core.settings import Settings


@pytest.fixture(scope="module")
def sync_id(client: TestClient, configured: Settings) -> str:
    """A sync that was registered and removed."""
    (configured.media_root / "films").mkdir(exist_ok=True)
    body = {"name": "films", "source": "films", "every_seconds": 900}
    sync_id: str = client.post("/syncs", json=body).json()["id"]
    client.delete(f"/syncs/{sync_id}")
    return sync_id


def test_changes_are_listed_with_actor_and_address(client: TestClient, sync_id: str) -> None:
    page = client.get("/audit", params={"target": sync_id}).json()
    assert [entry["action"] for entry in page["entries"]] == ["sync.remove", "sync.register"]
    assert {(entry["actor"], entry["address"]) for entry in page["entries"]} == {("anonymous", "testclient")}
    first = client.get("/audit", params={"target": sync_id, "limit": 1})
    assert 'rel="next"' in first.headers["link"]
    rest = client.get(
        "/audit", params={"target": sync_id, "limit": 1, "cursor": first.json()["next_cursor"]}
    ).json()
    assert [entry["action"] for entry in rest["entries"]] == ["sync.register"]


def test_uploads_are_recorded_when_their_last_byte_has_arrived(client: TestClient) -> None:
    tus = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
    created = client.post("/uploads", headers={**tus, "Upload-Length": "4"}, content=b"ab")
    path = created.headers["location"]
    target = {"target": path.rpartition("/")[2]}
    assert client.get("/audit", params=target).json()["entries"] == []
    client.patch(path, headers={**tus, "Upload-Offset": "2"}, content=b"cd")
    client.patch(path, headers={**tus, "Upload-Offset": "4"}, content=b"")  # a repeated request
    client.delete(path, headers=tus)
    entries = client.get("/audit", params=target).json()["entries"]
    assert [entry["action"] for entry in entries] == ["upload.delete", "upload.finish"]
    assert entries[1]["details"]["bytes"] == 4


@pytest.mark.parametrize(
    "query",
    [
        "atcor=ada",
        "cursor=broken",
        "kind=robot",
        "target=%00",
        "limit=1001",
        "after=2026-01-02&before=2026-01-01",
    ],
)
def test_bad_parameters_name_the_field(client: TestClient, query: str) -> None:
    answer = client.get(f"/audit?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].startswith(query.partition("=")[0])
