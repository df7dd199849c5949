"""Repetitions of requests: which ones, after which pause, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest
from cinestrata_client import Client, RetryPolicy, TooManyRequestsError, UnavailableError, UnreachableError
from cinestrata_client.models import TaskSpec, VideoSpec

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
    """Pauses of the client, which do not take time."""
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


def test_pauses_grow_without_a_named_one(pauses: list[float]) -> None:
    client, _ = _client([_busy(), _busy(), _busy(), _busy()])
    with pytest.raises(TooManyRequestsError):
        client.livez()
    assert len(pauses) == 3
    assert pauses[0] <= 0.5 < pauses[2] <= 2


def test_long_pause_ends_the_repetitions(pauses: list[float]) -> None:
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
def test_lost_connection_repeats_only_requests_without_further_effect(
    pauses: list[float], call: Callable[[Client], Any], attempts: int
) -> None:
    client, requests = _client([httpx.ReadError("lost")] * 4)
    with pytest.raises(UnreachableError, match="lost"):
        call(client)
    assert len(requests) == attempts
    assert len({request.headers.get("Idempotency-Key") for request in requests}) == 1


def test_unconfirmed_commit_is_repeated_only_with_a_key(pauses: list[float]) -> None:
    client, requests = _client([httpx.Response(503, json=IN_DOUBT)] * 5)
    with pytest.raises(UnavailableError):
        client.cancel_task("x")
    assert len(requests) == 1
    with pytest.raises(UnavailableError):
        client.create_task(SPEC)
    assert len(requests) == 5


def test_policy_without_repetitions_sends_once(pauses: list[float]) -> None:
    transport = httpx.MockTransport(lambda _: _busy())
    client = Client("http://service", transport=transport, retries=RetryPolicy(max_retries=0))
    with pytest.raises(TooManyRequestsError):
        client.livez()
    assert pauses == []


def test_answer_that_is_no_problem_document_is_described(pauses: list[float]) -> None:
    client, _ = _client([httpx.Response(502, text="<html>Bad gateway</html>")])
    with pytest.raises(Exception, match="502 Bad Gateway"):
        client.livez()


def test_unknown_fields_and_values_of_later_services_are_accepted() -> None:
    answer = {"deleted": [], "not_found": [], "later": {"a": 1}}
    client, _ = _client([httpx.Response(200, json=answer)])
    assert client.delete_video("x").deleted == []


def test_only_fields_that_were_set_are_sent() -> None:
    client, requests = _client([httpx.Response(404, json={})])
    with pytest.raises(Exception, match="404"):
        client.create_task(SPEC)
    assert requests[0].content == b'{"name":"kitchen","videos":[{"uri":"a.mp4"}]}'
    assert requests[0].url.path == "/v1/tasks"
