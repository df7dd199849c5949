"""Registered syncs over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient

from service.core.settings import Settings


def test_syncs_are_registered_listed_and_removed(client: TestClient, configured: Settings) -> None:
    (configured.media_root / "films").mkdir(exist_ok=True)
    body = {"name": "films", "source": "films", "every_seconds": 900}
    answer = client.post("/syncs", json=body)
    assert answer.status_code == 201, answer.text
    sync = answer.json()
    assert (sync["name"], sync["vanished"], sync["running"], sync["counts"]) == ("films", "keep", False, None)
    assert [found["id"] for found in client.get("/syncs").json()] == [sync["id"]]
    assert client.delete(f"/syncs/{sync['id']}").status_code == 204
    assert client.delete(f"/syncs/{sync['id']}").status_code == 404
    assert client.get("/syncs").json() == []


def test_bad_registrations_name_the_field(client: TestClient) -> None:
    good = {"name": "films", "source": "films", "every_seconds": 900}
    bad = {"source": "../../etc", "every_seconds": 5, "vanished": "burn", "name": "", "unknown": 1}
    for field, value in bad.items():
        answer = client.post("/syncs", json=good | {field: value})
        assert answer.status_code == 422, answer.text
        assert field in answer.text
