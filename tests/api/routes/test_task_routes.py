"""Creating, watching and cancelling tasks over HTTP, refused requests, and event streams."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import uuid
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from api.routes import task_routes
from api.security.authentication import SESSION_COOKIE, Authenticator
from cinestrata_schemas.access import KeySecret, KeySpec
from cinestrata_schemas.tasks import TaskSpec, VideoSpec
from service.access.credentials import (
    SessionOwner,
    create_key,
    end_session,
    list_keys,
    list_sessions,
    revoke_key,
    start_session,
)
from service.tasks.commands import cancel_task, create_task
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


# Headers of a request, and a function that ends its access.
Credentials = tuple[dict[str, str], Callable[[], object]]


@pytest.fixture
def task(world: Path) -> Iterator[str]:
    """ID of a waiting task. The service has no keys afterwards."""
    line = json.loads((world / FIRST / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[0])
    video = VideoSpec(uri=f"{FIRST}/{line['uri']}", captions=line["captions"])
    yield create_task(TaskSpec(name=uuid.uuid4().hex, videos=[video])).task.id
    for key in list_keys():
        revoke_key(key.id)


def _key() -> KeySecret:
    return create_key(KeySpec(name=uuid.uuid4().hex, scope="search"))


def _open_stream(
    client: TestClient, task: str, headers: dict[str, str] | None = None, caller: str = ""
) -> AsyncIterator[str]:
    async def silent() -> dict[str, Any]:
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    encoded = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    request = Request({"type": "http", "method": "GET", "app": client.app, "headers": encoded}, silent)
    return task_routes.event_stream(task, 0, request, caller)


def test_idle_event_stream_sends_heartbeats_and_ends_with_the_task(
    client: TestClient, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_routes, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(task_routes, "HEARTBEAT_POLLS", 2)

    async def watched() -> list[str]:
        lines = []
        async for line in _open_stream(client, task):
            lines.append(line)
            if line.startswith(":") and sum(entry.startswith(":") for entry in lines) == 1:
                client.post(f"/tasks/{task}/cancel")
        return lines

    lines = asyncio.run(asyncio.wait_for(watched(), timeout=20))
    assert lines[0].startswith("id: ")
    assert '"state":"queued"' in lines[0]
    assert any(line.startswith(":") for line in lines[1:])
    assert '"state":"cancelled"' in lines[-1]


def _key_that_is_revoked() -> Credentials:
    key, _ = _key(), _key()  # without any key, the service would be open again
    return {"X-API-Key": key.key}, lambda: revoke_key(key.id)


def _session_that_is_ended() -> Credentials:
    token = start_session(SessionOwner(key_id=_key().id), "key", "")
    (session,) = list_sessions()
    return {"Cookie": f"{SESSION_COOKIE}={token}"}, lambda: end_session(session.id)


def _service_without_keys() -> Credentials:
    return {}, _key


@pytest.mark.parametrize("prepare", [_key_that_is_revoked, _session_that_is_ended, _service_without_keys])
def test_event_stream_ends_with_the_access_of_its_request(
    client: TestClient, task: str, prepare: Callable[[], Credentials], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Any] = []
    authenticator: Authenticator = client.app.state.authenticator  # type: ignore[attr-defined]
    monkeypatch.setattr(authenticator.failures, "add", lambda *attempt: failed.append(attempt))
    headers, end_access = prepare()

    async def watched() -> list[str]:
        stream = _open_stream(client, task, headers)
        first = await anext(stream)
        end_access()
        cancel_task(task)  # adds an event, which the stream must not send
        return [first, *[line async for line in stream]]

    (line,) = asyncio.run(watched())
    assert '"state":"queued"' in line
    assert failed == []


def test_number_of_event_streams_is_limited(
    client: TestClient, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_routes.STREAMS, "most", 1)

    async def statuses() -> list[int]:
        stream = _open_stream(client, task, caller="key:other")
        await anext(stream)
        during = await asyncio.to_thread(client.get, f"/tasks/{task}/events")
        await stream.aclose()
        client.post(f"/tasks/{task}/cancel")
        after = await asyncio.to_thread(client.get, f"/tasks/{task}/events")
        assert during.headers["retry-after"]
        return [during.status_code, after.status_code]

    assert asyncio.run(asyncio.wait_for(statuses(), timeout=30)) == [429, 200]
