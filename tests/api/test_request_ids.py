"""Request IDs and traces: in responses, in log lines, with tasks, and in the spans of requests and stages."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
import structlog
from asgi_correlation_id import correlation_id
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from api.app import create_app
from service.catalog.database import now, session_scope
from service.catalog.tables import Task
from service.core import tracing
from service.core.errors import Unavailable
from service.core.settings import Settings
from service.tasks import lifecycle
from service.tasks.lifecycle import state_machine
from tests.api.conftest import BASE_URL

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
        seen.append((event["event"], event["level"], event.get("reason"), correlation_id.get()))
        raise structlog.DropEvent

    # The log of the process may be configured and cached already, so that capture_logs() would see nothing.
    for module in ("claims", "state_machine"):
        captured = structlog.wrap_logger(None, processors=[structlog.stdlib.add_log_level, capture])
        monkeypatch.setattr(f"service.tasks.lifecycle.{module}.log", captured)
    with claim:
        assert correlation_id.get() == "job-1"
        raise OSError("broken disk")
    assert seen == [
        ("task_claimed", "info", None, "job-1"),
        ("task_exception", "error", None, "job-1"),
        ("task_failed", "error", "OSError: broken disk", "job-1"),
    ]
    assert correlation_id.get() is None
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
        lines.append({**event, "id": correlation_id.get()})
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


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """This process's spans, read from memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use_provider(provider)
    yield exporter
    tracing.use_provider(None)


def _by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def _attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(name)


def test_request_continues_the_trace_of_its_caller(configured: Settings, spans: InMemorySpanExporter) -> None:
    client = TestClient(create_app(configured), base_url=BASE_URL)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "traced-1"}
    client.get("/v1/videos/secret-id", headers=headers)
    span = _by_name(spans)["GET /videos/{video_id}"]
    assert (f"{span.context.trace_id:032x}", span.parent and f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert _attribute(span, "http.response.status_code") == 404
    assert _attribute(span, "cinestrata.request_id") == "traced-1"
    assert "secret-id" not in span.to_json()


def test_stages_of_a_search_follow_each_other_below_its_span(spans: InMemorySpanExporter) -> None:
    with tracing.request_span("GET", {}):
        tracing.record_stages("search", [("route", 1.0), ("encode", 2.5)], {"cinestrata.results": 3})
    by_name = _by_name(spans)
    search, route, encode = by_name["search"], by_name["search route"], by_name["search encode"]
    assert search.parent is not None
    assert search.parent.span_id == by_name["GET"].context.span_id
    assert {span.parent.span_id for span in (route, encode) if span.parent} == {search.context.span_id}
    assert (route.start_time, route.end_time) == (search.start_time, encode.start_time)
    assert encode.end_time == search.end_time
    assert encode.end_time is not None
    assert encode.start_time is not None
    assert encode.end_time - encode.start_time == 2_500_000


def test_stages_of_a_task_carry_the_request_of_its_creation(
    client: TestClient, configured: Settings, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tasks.broker.send_probe", lambda task_id: None)
    (configured.media_root / "a.mp4").write_bytes(b"x")
    spec = {"name": "traced", "videos": [{"uri": "a.mp4"}]}
    task = client.post("/v1/tasks", json=spec, headers={"X-Request-ID": "traced-2"}).json()
    claim = lifecycle.claim_probing(task["id"], "worker")
    assert claim is not None
    with claim:
        claim.progress("probing", 0.5)
        claim.progress("probing", 0.7)
        raise OSError("broken disk")
    by_name = _by_name(spans)
    whole, stage = by_name["task"], by_name["task probing"]
    assert stage.parent is not None
    assert stage.parent.span_id == whole.context.span_id
    assert _attribute(whole, "cinestrata.task_id") == task["id"]
    assert (
        _attribute(whole, "cinestrata.request_id") == _attribute(stage, "cinestrata.request_id") == "traced-2"
    )
    assert whole.status.status_code is StatusCode.ERROR


def test_process_without_the_setting_imports_no_module_of_opentelemetry() -> None:
    code = (
        "import sys; from service.core import tracing; tracing.start_tracing(None, 'x'); "
        "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


class _Collector(BaseHTTPRequestHandler):
    """A collector that keeps its requests' paths and bodies."""

    received: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        """Keep the spans."""
        self.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_collector_receives_the_spans(configured: Settings) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}/"
    try:
        traced = configured.model_copy(update={"otlp_endpoint": endpoint})
        TestClient(create_app(traced), base_url=BASE_URL).get("/livez")
    finally:
        tracing.use_provider(None)
        server.shutdown()
        server.server_close()
    path, body = _Collector.received[0]
    assert path == "/v1/traces"
    assert b"GET /livez" in body
    assert b"cinestrata-api" in body
