"""Retries, timeouts and errors: which requests are retried, after which pause, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from cinestrata_client import Client, UnavailableError, UnreachableError
from cinestrata_schemas.tasks import TaskSpec, VideoSpec

SPEC = TaskSpec(name="kitchen", videos=[VideoSpec(uri="a.mp4")])
IN_DOUBT = {
    "type": "urn:cinestrata:problem:commit-not-confirmed",
    "title": "x",
    "status": 503,
    "detail": "x",
    "instance": "/",
}
Answer = httpx.Response | Exception


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's pauses, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


def _client(answers: Sequence[Answer]) -> tuple[Client, list[httpx.Request]]:
    requests: list[httpx.Request] = []
    remaining = list(answers)

    def respond(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = remaining.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://service", transport=httpx.MockTransport(respond)), requests


def _busy(status: int = 429, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers, json={})


def test_pause_is_that_of_the_service(pauses: list[float]) -> None:
    busy = [_busy(**{"Retry-After": "7"}), _busy(503, **{"Retry-After": "2"})]
    client, requests = _client([*busy, httpx.Response(200, json={})])
    client.livez()
    assert pauses == [7, 2]
    assert len(requests) == 3


def test_long_pause_ends_the_retries(pauses: list[float]) -> None:
    client, _ = _client([_busy(503, **{"Retry-After": "3600"})])
    with pytest.raises(UnavailableError) as refused:
        client.livez()
    assert (refused.value.retry_after, pauses) == (3600, [])


@pytest.mark.parametrize(
    ("call", "attempts"),
    [
        (lambda c: c.livez(), 4),
        (lambda c: c.delete_video("x"), 4),
        (lambda c: c.create_task(SPEC), 4),
        (lambda c: c.cancel_task("x"), 1),
    ],
)
def test_lost_connection_retries_only_idempotent_requests(
    pauses: list[float], call: Callable[[Client], Any], attempts: int
) -> None:
    client, requests = _client([httpx.ReadError("lost")] * 4)
    with pytest.raises(UnreachableError, match="lost"):
        call(client)
    assert len(requests) == attempts
    assert len({request.headers.get("Idempotency-Key") for request in requests}) == 1


def test_unconfirmed_commit_is_retried_only_with_a_key(pauses: list[float]) -> None:
    client, requests = _client([httpx.Response(503, json=IN_DOUBT)] * 5)
    with pytest.raises(UnavailableError):
        client.cancel_task("x")
    assert len(requests) == 1
    with pytest.raises(UnavailableError):
        client.create_task(SPEC)
    assert len(requests) == 5


def test_error_without_a_problem_document_is_described(pauses: list[float]) -> None:
    client, _ = _client([httpx.Response(502, text="<html>Bad gateway</html>")])
    with pytest.raises(Exception, match="502 Bad Gateway"):
        client.livez()


def test_unreadable_response_is_retried_like_a_lost_connection(pauses: list[float]) -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"no gzip"))

    client = Client("http://service", transport=httpx.MockTransport(respond))
    with pytest.raises(UnreachableError, match="/v1/livez: "):
        client.livez()
    assert len(pauses) == 3
