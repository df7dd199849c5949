"""The request ID: in every response, in log lines, with the task, and in its worker's log lines."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient

from service.catalog.database import now, session_scope
from service.catalog.tables import Task
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.core.tracing import current_request_id
from service.tasks import lifecycle
from service.tasks.lifecycle import state_machine

HEADER = "X-Request-ID"


def _id_of(answer: object) -> str:
    value = answer.headers[HEADER]  # type: ignore[attr-defined]
    assert isinstance(value, str)
    return value


@pytest.mark.parametrize("sent", ["7b1c", "Root=1", "a" * 65, "a b", "é", "a\tb", "<script>", ""])
def test_only_well_formed_ids_are_taken_over(client: TestClient, sent: str) -> None:
    answer = client.get("/livez", headers={HEADER: sent.encode()})
    assert (_id_of(answer) == sent) is (sent == "7b1c")
    assert 1 <= len(_id_of(answer)) <= 64


@pytest.mark.parametrize("path", ["/videos/x", "/nothing", "/tasks?limit=0", "/v1/tasks?limit=0"])
def test_errors_have_the_id(client: TestClient, path: str) -> None:
    answer = client.get(path, headers={HEADER: "err-1"})
    assert answer.is_error
    assert _id_of(answer) == "err-1"


def test_worker_of_a_task_logs_the_id_of_its_request(
    client: TestClient, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tasks.broker.send_probe", lambda task_id: None)
    (configured.media_root / "a.mp4").write_bytes(b"x")
    spec = {"name": "of a request", "videos": [{"uri": "a.mp4", "captions": ["a taxi"]}]}
    answer = client.post("/v1/tasks", json=spec, headers={HEADER: "job-1"})
    assert answer.status_code == 202, answer.text
    task = answer.json()
    assert task["request_id"] == client.get(answer.headers["location"]).json()["request_id"] == "job-1"
    claim = lifecycle.claim_probing(task["id"], "worker")
    assert claim is not None
    seen: list[tuple[str, str, str | None, str | None]] = []

    def capture(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        seen.append((event["event"], event["level"], event.get("reason"), current_request_id()))
        raise structlog.DropEvent

    # The log of the process may be configured and cached already, so that capture_logs() would see nothing.
    for module in ("claims", "state_machine"):
        captured = structlog.wrap_logger(None, processors=[structlog.stdlib.add_log_level, capture])
        monkeypatch.setattr(f"service.tasks.lifecycle.{module}.log", captured)
    with claim:
        assert current_request_id() == "job-1"
        raise OSError("broken disk")
    assert seen == [
        ("task_claimed", "info", None, "job-1"),
        ("task_exception", "error", None, "job-1"),
        ("task_failed", "error", "OSError: broken disk", "job-1"),
    ]
    assert current_request_id() is None
    seen.clear()
    client.post(f"/v1/tasks/{task['id']}/retry", headers={HEADER: "again-1"})
    with session_scope(write=True) as session:
        row = session.get_one(Task, task["id"])
        row.attempts, row.lease_expires_at = state_machine.MAX_ATTEMPTS, now(session)
    monkeypatch.setattr("service.tasks.broker.send_probe", lambda task_id: None)
    lifecycle.reconcile()
    assert [(event, request_id) for event, _, _, request_id in seen] == [
        ("task_state", "again-1"),
        ("task_failed", "job-1"),
    ]


@pytest.fixture
def request_log(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Log lines about requests, each with its request's ID."""
    lines: list[dict[str, Any]] = []

    def capture(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        lines.append({**event, "id": current_request_id()})
        raise structlog.DropEvent

    monkeypatch.setattr(
        "api.request_middleware.log",
        structlog.wrap_logger(None, processors=[structlog.stdlib.add_log_level, capture]),
    )
    return lines


def test_refused_requests_are_logged_with_their_route(
    client: TestClient, request_log: list[dict[str, Any]]
) -> None:
    for number, (method, path) in enumerate(
        [
            ("GET", "/v1/videos/secret-name?fields=x"),
            ("POST", "/tasks?api_key=abc"),
            ("GET", "/tasks?limit=0"),
            ("GET", "/secret-name"),
        ]
    ):
        client.request(method, path, headers={HEADER: f"r-{number}"})
    client.get("/livez")
    assert [(line["id"], line["status"], line["method"], line["route"]) for line in request_log] == [
        ("r-0", 404, "GET", "/videos/{video_id}"),
        ("r-1", 422, "POST", "unmatched"),
        ("r-2", 422, "GET", "/tasks"),
        ("r-3", 404, "GET", "unmatched"),
    ]
    assert {(line["event"], line["level"]) for line in request_log} == {("request_refused", "info")}
    assert not any("secret" in str(line) or "abc" in str(line) for line in request_log)


def test_failed_requests_are_logged_with_their_reason(
    client: TestClient, request_log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise Unavailable("The catalog database does not respond; try again.", 5)

    monkeypatch.setattr("service.webhooks.endpoints.list_webhooks", refuse)
    assert client.get("/webhooks", headers={HEADER: "down-1"}).status_code == 503
    assert request_log == [
        {
            "event": "request_failed",
            "level": "warning",
            "id": "down-1",
            "status": 503,
            "method": "GET",
            "route": "/webhooks",
            "error": "The catalog database does not respond; try again.",
        }
    ]
