"""Requests are refused before they are routed, while the queue that they would join is too long."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from anyio import CapacityLimiter, to_thread
from fastapi.testclient import TestClient
from httpx import ASGITransport, AsyncClient, Response
from starlette.types import Receive, Scope, Send

from api.request_middleware import SECURITY_HEADERS, LoadSheddingMiddleware
from api.request_threads import run_health_check, run_long, run_search
from service.core import request_limits
from service.library import prometheus_metrics
from service.search.engine import AdmissionControl
from tests.api.conftest import BASE_URL

WAITING = 64  # requests; while so many wait, others are refused
HEALTH = ("/livez", "/readyz", "/metrics")  # paths that are never refused


@contextmanager
def _full_queue(client: TestClient) -> Iterator[None]:
    service = client.app.state.query_service  # type: ignore[attr-defined]
    with service.admission.admit(request_limits.MAX_WAITING_TEXTS):
        yield


async def _answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def _refused_count() -> float:
    labels = {"method": "GET", "route": "refused", "status": "429"}
    return prometheus_metrics.REGISTRY.get_sample_value("cinestrata_requests_total", labels) or 0.0


@pytest.mark.parametrize("path", ["/search", "/v1/search", "/v1/search/clip"])
def test_a_search_is_refused_while_the_queue_is_full(client: TestClient, path: str) -> None:
    before = _refused_count()
    with _full_queue(client):
        answer = client.get(path, params={"q": "a taxi"})
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["instance"] == path
    assert "the limit is 512" in answer.json()["detail"]
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert _refused_count() == before + 1


@pytest.mark.parametrize("path", ["/tasks", "/v1/videos", "/livez", "/readyz", "/metrics", "/searches"])
def test_other_requests_are_answered_while_the_queue_of_searches_is_full(
    client: TestClient, path: str
) -> None:
    with _full_queue(client):
        assert client.get(path).status_code != 429


def test_requests_are_refused_while_too_many_wait_for_a_thread() -> None:
    freed = threading.Event()

    async def wait_in_thread(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            await to_thread.run_sync(freed.wait)
        await _answer_nothing(scope, receive, send)

    async def send_requests() -> tuple[dict[str, Response], list[Response]]:
        limiter: CapacityLimiter = to_thread.current_default_thread_limiter()
        limiter.total_tokens = 2
        app = LoadSheddingMiddleware(wait_in_thread, AdmissionControl(1))
        async with AsyncClient(transport=ASGITransport(app), base_url=BASE_URL) as client:
            slow = [asyncio.create_task(client.get("/slow")) for _ in range(WAITING + 2)]
            while limiter.statistics().tasks_waiting < WAITING:
                await asyncio.sleep(0.01)
            others = {path: await client.get(path) for path in ("/tasks", "/search", *HEALTH)}
            freed.set()
            return others, await asyncio.gather(*slow)

    try:
        others, slow = asyncio.run(send_requests())
    finally:
        freed.set()
    statuses = {path: answer.status_code for path, answer in others.items()}
    assert statuses == {"/tasks": 429, "/search": 204, **dict.fromkeys(HEALTH, 204)}
    assert json.loads(others["/tasks"].content)["detail"].startswith(
        "The server is busy: 64 requests are waiting"
    )
    assert {answer.status_code for answer in slow} == {204}, "admitted requests are answered"


def test_long_work_and_health_checks_have_threads_of_their_own() -> None:
    freed = threading.Event()

    async def occupy_all() -> tuple[int, str, str]:
        to_thread.current_default_thread_limiter().total_tokens = 2
        waiting = [asyncio.create_task(to_thread.run_sync(freed.wait)) for _ in range(4)]
        waiting += [asyncio.create_task(run_long(freed.wait, 60)) for _ in range(20)]
        await asyncio.sleep(0.05)
        answer = await run_health_check(str.upper, "ready")
        searched = await run_search(str.upper, "found")
        short = to_thread.current_default_thread_limiter().borrowed_tokens
        freed.set()
        await asyncio.gather(*waiting)
        return int(short), answer, searched

    try:
        assert asyncio.run(occupy_all()) == (2, "READY", "FOUND")
    finally:
        freed.set()


def test_health_checks_are_answered_while_all_threads_are_occupied(client: TestClient) -> None:
    freed = threading.Event()

    async def occupy() -> None:
        limiter = to_thread.current_default_thread_limiter()
        for _ in range(int(limiter.total_tokens)):
            occupied.append(asyncio.create_task(to_thread.run_sync(freed.wait)))
        while limiter.available_tokens:
            await asyncio.sleep(0.01)

    async def release() -> None:
        freed.set()
        await asyncio.gather(*occupied)

    occupied: list[asyncio.Task[bool]] = []
    with client:
        assert client.portal is not None
        client.portal.call(occupy)
        try:
            statuses = [client.get(path).status_code for path in ("/livez", "/readyz", "/metrics")]
        finally:
            client.portal.call(release)
    assert statuses[0] == statuses[2] == 200
    assert statuses[1] in (200, 503)  # an empty library may still be loading
