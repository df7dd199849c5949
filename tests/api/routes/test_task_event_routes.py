"""Event streams of a task: their content, end and number."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
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
