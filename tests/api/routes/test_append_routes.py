"""Appends and deletions over HTTP: requests, refusals, and what searches find afterwards."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.celery_worker import probe
from service.core.settings import Settings
from tests.api.learned_library import SECOND
from trainer.worker.append_job import run_append_job


def _entry(configured: Settings, world: Path, name: str) -> dict[str, Any]:
    """Change the bytes of a video in the second domain, so that it is a new file for the first domain."""
    source = sorted((world / SECOND).glob("*.mp4"))[0]
    target = configured.media_root / "new" / f"{name}.mp4"
    target.parent.mkdir(exist_ok=True)
    shutil.copy(source, target)
    with target.open("ab") as file:
        file.write(len(name.encode()).to_bytes(4, "big") + b"free" + name.encode())
    return {"uri": f"new/{name}.mp4", "id": name, "captions": [f"a clip that is called {name}"]}


def _run(client: TestClient, append: str) -> dict[str, Any]:
    probe(append)
    run_append_job(append)
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    return dict(client.get(f"/tasks/{append}").json())


@pytest.mark.slow
def test_appended_videos_are_found(
    client: TestClient, library: list[str], configured: Settings, world: Path
) -> None:
    domain = library[0]
    before = client.get(f"/tasks/{domain}").json()
    body = {"videos": [_entry(configured, world, "fresh")]}
    answer = client.post(f"/tasks/{domain}/videos", json=body, headers={"Idempotency-Key": "once"})
    assert answer.status_code == 202, answer.text
    append = answer.json()
    assert (append["into"], append["state"], append["learned_order"]) == (domain, "queued", None)
    assert answer.headers["location"] == f"/tasks/{append['id']}"
    again = client.post(f"/tasks/{domain}/videos", json=body, headers={"Idempotency-Key": "once"})
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (append["id"], "true")
    assert "fresh" not in _found(client, domain)

    done = _run(client, append["id"])
    assert (done["state"], done["counts"]["appended"]) == ("ready", 1)
    after = client.get(f"/tasks/{domain}").json()
    assert after["counts"]["accepted"] == before["counts"]["accepted"] + 1
    assert after["counts"]["appended"] == 1
    assert client.get("/videos/fresh").json()["task_id"] == domain
    assert "fresh" in _found(client, domain)
    assert client.delete(f"/tasks/{append['id']}").status_code == 200
    assert client.get(f"/tasks/{append['id']}").json()["state"] == "ready"


def _found(client: TestClient, task: str) -> set[str]:
    answer = client.get("/search", params={"q": "a clip", "k": 100, "task": task}).json()
    return {result["video_id"] for result in answer["results"]}


def test_archive_is_appended(
    client: TestClient, library: list[str], configured: Settings, world: Path
) -> None:
    entry = _entry(configured, world, "packed")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.write(configured.media_root / entry["uri"], "packed.mp4")
        archive.writestr("padding.bin", bytes(200_000))  # more than the limit of other bodies
        archive.writestr("manifest.jsonl", json.dumps({**entry, "uri": "packed.mp4"}))
    buffer.seek(0)
    answer = client.post(f"/tasks/{library[0]}/videos", files={"archive": ("new.zip", buffer)})
    assert answer.status_code == 202, answer.text
    assert _run(client, answer.json()["id"])["state"] == "ready"
    assert client.get("/videos/packed/stream").status_code == 200


def test_refusals_name_the_reason(
    client: TestClient, library: list[str], configured: Settings, world: Path
) -> None:
    body = {"videos": [_entry(configured, world, "refused")]}
    assert client.post("/tasks/nowhere/videos", json=body).status_code == 404
    append = client.post(f"/tasks/{library[0]}/videos", json=body).json()
    nested = client.post(
        f"/tasks/{append['id']}/videos", json={"videos": [{"uri": body["videos"][0]["uri"]}]}
    )
    assert (nested.status_code, library[0] in nested.json()["detail"]) == (409, True)
    taken = client.post(f"/tasks/{library[1]}/videos", json=body)
    assert (taken.status_code, "videos[0].id" in taken.json()["detail"]) == (409, True)
    client.post(f"/tasks/{append['id']}/cancel")
    waiting = client.post(
        "/tasks", json={"name": "waiting", "videos": [{"uri": body["videos"][0]["uri"]}]}
    ).json()
    early = client.post(f"/tasks/{waiting['id']}/videos", json=body)
    assert (early.status_code, "once it is ready" in early.json()["detail"]) == (409, True)
    client.post(f"/tasks/{waiting['id']}/cancel")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"videos": []}, "videos"),
        ({"videos": [{"uri": "../x.mp4"}]}, "videos[0].uri"),
        ({"videos": [{"uri": "missing.mp4"}]}, "videos[0].uri"),
        ({"name": "x", "videos": [{"uri": "missing.mp4"}]}, "name"),
        ({}, "videos"),
    ],
)
def test_invalid_field_is_named(
    client: TestClient, library: list[str], body: dict[str, Any], field: str
) -> None:
    answer = client.post(f"/tasks/{library[0]}/videos", json=body)
    assert answer.status_code == 422
    assert field in [error["field"] for error in answer.json()["errors"]]


def _found_tasks(client: TestClient) -> dict[str, str]:
    """Return the task of each video that a search finds."""
    return {
        result["video_id"]: result["task_id"]
        for result in client.get("/search", params={"q": "a ball", "k": 100}).json()["results"]
    }


def test_videos_are_deleted_singly_and_in_lists(
    client: TestClient, library: list[str], configured: Settings
) -> None:
    before = _found_tasks(client)
    # Without the upload of another test, whose file is deleted with it.
    first, second, third, *_, other = sorted(before.keys() - {"packed"}, key=before.__getitem__)
    one = client.get(f"/videos/{first}").json()
    answer = client.delete(f"/videos/{first}")
    assert (answer.status_code, answer.json()) == (200, {"deleted": [first], "not_found": []})
    for path in (f"/videos/{first}", f"/videos/{first}/thumbnail", f"/videos/{first}/stream"):
        assert client.get(path).status_code == 404
    assert client.get(f"/videos/{first}/similar").status_code == 404
    assert (configured.media_root / one["uri"]).exists(), "files below the media root are kept"
    assert _found_tasks(client).keys() == before.keys() - {first}
    again = client.delete(f"/videos/{first}")
    assert again.status_code == client.get(f"/videos/{first}").status_code == 404
    assert again.json() == client.get(f"/videos/{first}").json()
    task = before[second]
    theirs = client.request("DELETE", f"/tasks/{task}/videos", json={"videos": [second, third, "nobody"]})
    assert theirs.json() == {"deleted": [second, third], "not_found": ["nobody"]}
    apart = client.request("DELETE", f"/tasks/{task}/videos", json={"videos": [other]})
    assert apart.json() == {"deleted": [], "not_found": [other]}
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    assert _found_tasks(client).keys() == before.keys() - {first, second, third}
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
