"""The commands' client: the same answers over HTTP and from a data folder, and errors as users see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cinestrata_schemas.library import ServeSpec
from cli.service_client import ApplicationTransport, ServiceClient
from service.core.settings import Settings
from tests.api.browser import serve
from tests.api.conftest import client, configured, learned_folder, library, rendered_world, world
from tests.cli.invocation import Answers, problem, run

__all__ = ["client", "configured", "learned_folder", "library", "rendered_world", "world"]

URL = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        (
            problem(401, "The API key is wrong."),
            ["The API key is wrong.", "Set CINESTRATA_API_KEY to a key of the service."],
        ),
        (problem(403, "The key has not the scope admin."), ["The key has not the scope admin."]),
        (
            problem(
                422,
                "k: 0 is too small. Send at least 1. (1 more)",
                {"field": "k", "message": "0 is too small.", "hint": "Send at least 1."},
                {"field": "task[0]", "message": "There is no task 'x'.", "hint": "See the list of tasks."},
            ),
            [
                "k: 0 is too small. Send at least 1. (1 more)",
                "task[0]: There is no task 'x'. See the list of tasks.",
            ],
        ),
        (problem(503, "The model is loading.", **{"Retry-After": "30"}), ["The model is loading."]),
        (
            httpx.Response(502, text="<html>"),
            ["The server answered 502 Bad Gateway without a problem document."],
        ),
        (
            httpx.Response(307, headers={"Location": "https://a.example/"}),
            ["The server answered 307 Temporary Redirect without a problem document."],
        ),
        (
            httpx.Response(200, text="<html>"),
            [
                "The service sent an unexpected response (list[TaskDetails]).",
                "Check that service and command have the same version: cinestrata --version",
            ],
        ),
        *(
            (
                error,
                [
                    f"The service doesn't answer: {shown}",
                    "Check that it is running and that --url is correct. To start it: cinestrata up",
                ],
            )
            for error, shown in (
                (httpx.ConnectError("[Errno 111] Connection refused"), "[Errno 111] Connection refused"),
                (httpx.ReadTimeout(""), "ReadTimeout"),
            )
        ),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_error_of_a_request_is_a_sentence_with_a_hint(
    answers: Answers, response: httpx.Response | Exception, shown: list[str], options: list[str]
) -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    requests = answers(respond)
    outcome = run("tasks", "list", "--url", URL, *options)
    status = 2 if isinstance(response, httpx.Response) and response.status_code == 422 else 1
    assert (outcome.exit_code, outcome.stdout, outcome.stderr.splitlines()) == (status, "", shown)
    assert len(requests) == (3 if isinstance(response, Exception) else 1)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://", "http://[::1", "http://host:99999", "ftp://host"]
)
def test_malformed_url_is_reported(url: str) -> None:
    outcome = run("tasks", "list", "--url", url)
    assert outcome.exit_code == 2
    assert f"{url!r} is not a URL" in outcome.stderr
    assert "--url" in outcome.stderr


@pytest.mark.parametrize("key", ["schlüssel", "secret\n", "secret\x7f"])
def test_malformed_key_is_reported_without_it(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("CINESTRATA_API_KEY", key)
    outcome = run("tasks", "list", "--url", URL)
    assert outcome.exit_code == 2
    assert "CINESTRATA_API_KEY" in outcome.stderr
    assert key.strip() not in outcome.stderr


@pytest.fixture(scope="module")
def address(client: TestClient, library: list[str]) -> Iterator[str]:
    """URL of a service with two learned domains."""
    with serve(client.app) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        lambda c, task: c.list_tasks(),
        lambda c, task: [c.get_task(task)],
        lambda c, task: list(c.iter_videos(task=task)),
        lambda c, task: [c.list_videos(task=task, limit=2, sort="-id")],
        lambda c, task: list(c.iter_releases()),
        lambda c, task: [c.get_forgetting()],
        lambda c, task: [c.list_audit_entries(limit=5)],
        lambda c, task: [c.find_similar(next(c.iter_videos(task=task)).id, k=2)],
        lambda c, task: c.search("a car", k=3, task=[task], where={"color": "red"}).results,
        lambda c, task: c.search("a red car", k=3, mode="pinned").results,
        lambda c, task: [c.serve_release("newest", body=ServeSpec(dry_run=True))],
    ],
)
def test_answers_over_http_are_those_of_the_data_folder(
    address: str, configured: Settings, library: list[str], read: Callable[[Any, str], list[BaseModel]]
) -> None:
    local = read(ServiceClient(None, configured.data_dir), library[0])
    remote = read(ServiceClient(address), library[0])
    assert [model.model_dump_json() for model in remote] == [model.model_dump_json() for model in local]
    assert [type(model) for model in remote] == [type(model) for model in local]


BLOCKS = 100
sent: list[int] = []


async def _stream(request: Request) -> Response:
    def blocks() -> Iterator[bytes]:
        for number in range(BLOCKS):
            sent.append(number)
            yield b"x" * 1000

    return StreamingResponse(blocks())


async def _length(request: Request) -> Response:
    return JSONResponse(await run_in_threadpool(len, await request.body()))


async def _fail(request: Request) -> Response:
    raise ValueError("unexpected")


@pytest.fixture
def application_client() -> Iterator[httpx.Client]:
    sent.clear()
    routes = [Route("/stream", _stream), Route("/length", _length, methods=["POST"]), Route("/fail", _fail)]
    transport = ApplicationTransport(lambda: Starlette(routes=routes))
    with httpx.Client(transport=transport, base_url="http://localhost") as opened:
        yield opened


def test_bodies_are_sent_and_read_in_parts(application_client: httpx.Client) -> None:
    assert application_client.post("/length", content=(b"a" * 10 for _ in range(5))).json() == 50
    assert len(application_client.get("/stream").content) == 1000 * BLOCKS


def test_abandoned_response_is_not_continued(application_client: httpx.Client) -> None:
    with application_client.stream("GET", "/stream") as response:
        next(response.iter_raw())
    assert 0 < len(sent) < BLOCKS
    assert application_client.post("/length", content=b"abc").json() == 3


def test_unexpected_error_is_raised(application_client: httpx.Client) -> None:
    with pytest.raises(ValueError, match="unexpected"):
        application_client.get("/fail")
