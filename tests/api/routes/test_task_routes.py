"""Creating, watching and cancelling tasks over HTTP, and refused requests."""

from __future__ import annotations

import io
import json
import re
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.learned_library import FIRST


def _videos(world: Path) -> list[dict[str, Any]]:
    lines = (world / FIRST / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    return [{"uri": f"{FIRST}/{json.loads(x)['uri']}", "captions": json.loads(x)["captions"]} for x in lines]


def _body(world: Path, name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "videos": _videos(world), **fields}


def test_task_is_created_listed_cancelled_and_retried(client: TestClient, world: Path) -> None:
    answer = client.post("/tasks", json=_body(world, "one"))
    assert answer.status_code == 202
    task = answer.json()
    assert answer.headers["location"] == f"/tasks/{task['id']}"
    assert task["state"] == "queued"
    assert client.get(answer.headers["location"]).json()["name"] == "one"
    assert task["id"] in [entry["id"] for entry in client.get("/tasks").json()]
    assert client.post(f"/tasks/{task['id']}/cancel").json()["state"] == "cancelled"
    assert client.post(f"/tasks/{task['id']}/retry").json()["state"] == "queued"
    client.post(f"/tasks/{task['id']}/cancel")


def test_idempotency_key_creates_one_task(client: TestClient, world: Path) -> None:
    headers = {"Idempotency-Key": "abc"}
    first = client.post("/tasks", json=_body(world, "idempotent"), headers=headers)
    again = client.post("/tasks", json=_body(world, "idempotent"), headers=headers)
    assert again.status_code == 202
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    other = client.post("/tasks", json=_body(world, "another"), headers=headers)
    assert other.status_code == 422
    assert "Idempotency-Key" in other.json()["title"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"videos": []}, "videos"),
        ({"name": "a/b"}, "name"),
        ({"method": "magic"}, "method"),
        ({"surprise": 1}, "surprise"),
        ({"videos": [{"uri": "../../etc/passwd"}]}, "videos[0].uri"),
        ({"videos": [{"uri": "http://example.org/x.mp4"}]}, "videos[0].uri"),
        ({"videos": [{"uri": "a\0b.mp4"}]}, "videos[0].uri"),
    ],
)
def test_invalid_field_is_named(client: TestClient, world: Path, change: dict[str, Any], field: str) -> None:
    before = len(client.get("/tasks").json())
    answer = client.post("/tasks", json={**_body(world, "wrong"), **change})
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert field in [error["field"] for error in answer.json()["errors"]]
    assert len(client.get("/tasks").json()) == before


def test_invalid_videos_are_named_by_position(client: TestClient, world: Path) -> None:
    body = _body(world, "wrong")
    body["videos"][1]["captions"] = ["fine", "x" * 5000]
    body["videos"][0]["id"] = body["videos"][1]["id"] = "twin"
    body["videos"][1]["transcript"] = [
        {"start": 0, "end": 1, "text": "a"},
        {"start": 3, "end": 2, "text": "b"},
    ]
    fields = [error["field"] for error in client.post("/tasks", json=body).json()["errors"]]
    assert "videos[1].captions[1]" in fields
    assert "videos[1].transcript[1].end" in fields
    assert "videos[1].id" in fields


@pytest.mark.parametrize(
    "body", [b"{", b"", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"name": 1e999}', b"[" * 100_000]
)
def test_body_that_is_not_a_task_returns_422(client: TestClient, body: bytes) -> None:
    answer = client.post("/tasks", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_tasks_videos_and_paths_return_404(client: TestClient) -> None:
    for path in (
        "/tasks/none",
        "/tasks/none/events",
        "/videos/none",
        "/videos/none/stream",
        "/videos/%2e%2e%2fx/thumbnail",
        "/videos/%00",
        "/tasks/a%00b/events",
        "/nowhere",
    ):
        answer = client.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
    assert client.post("/tasks/none/retry").status_code == 404
    assert client.put("/tasks").status_code == 405


def _archive(world: Path, **changes: bytes | str) -> io.BytesIO:
    buffer = io.BytesIO()
    videos = sorted((world / FIRST).glob("*.mp4"))[:2]
    rows = [json.dumps({"uri": video.name, "captions": ["a clip"]}) for video in videos]
    with zipfile.ZipFile(buffer, "w") as archive:
        for video in videos:
            archive.write(video, video.name)
        for name, content in {"manifest.jsonl": "\n".join(rows), **changes}.items():
            archive.writestr(name, content)
    buffer.seek(0)
    return buffer


def test_archive_creates_a_task(client: TestClient, world: Path) -> None:
    answer = client.post(
        "/tasks",
        data={"name": "packed", "settings": '{"epochs": 1}'},
        files={"archive": ("clips.zip", _archive(world))},
    )
    assert answer.status_code == 202, answer.text
    task = answer.json()
    assert task["counts"]["videos"] == 2
    assert task["settings"] == {"epochs": 1}
    client.post(f"/tasks/{task['id']}/cancel")


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({"../escape.mp4": b"x", "manifest.jsonl": '{"uri": "../escape.mp4"}'}, {}),
        ({"/absolute.mp4": b"x", "manifest.jsonl": '{"uri": "/absolute.mp4"}'}, {}),
        ({"manifest.jsonl": '{"uri": "not-there.mp4"}'}, {}),
        ({"manifest.jsonl": "{broken"}, {}),
        ({}, {"settings": "[1]"}),
        ({}, {"settings": "[" * 100_000}),
        ({}, {"settings": "x" * 2_000_000}),
        ({}, {"name": ""}),
    ],
)
def test_hostile_or_broken_archive_leaves_no_files(
    client: TestClient, world: Path, changes: dict[str, bytes | str], form: dict[str, str]
) -> None:
    data = {"name": "hostile", **form}
    before = sorted(world.rglob("*"))
    answer = client.post("/tasks", data=data, files={"archive": ("clips.zip", _archive(world, **changes))})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]
    assert [p for p in sorted(world.rglob("*")) if p.is_file()] == [p for p in before if p.is_file()]


def test_broken_form_is_refused_with_a_hint(client: TestClient) -> None:
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=x"):
        answer = client.post("/tasks", content=b"--x\r\nfoo", headers={"Content-Type": kind})
        assert answer.status_code == 422
        assert all(error["hint"] for error in answer.json()["errors"])
    twice = [("archive", ("a.zip", b"x")), ("archive", ("b.zip", b"x"))]
    assert client.post("/tasks", data={"name": "x"}, files=twice).status_code == 422


def test_task_without_disk_space_returns_503_with_needed_and_free_bytes(
    client: TestClient, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = next(world.rglob("*.mp4")).relative_to(world)
    before = len(client.get("/tasks").json())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    body = {"name": "too large", "videos": [{"uri": str(video)}]}
    answer = client.post("/tasks", json=body)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
    assert answer.json()["title"] == "Insufficient storage"
    assert re.search(r"needs about [\d,]{7,} bytes .* has 0 bytes free", answer.json()["detail"])
    assert len(client.get("/tasks").json()) == before
