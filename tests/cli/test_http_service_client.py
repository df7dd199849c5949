"""The HTTP side of the clients of commands: requests, answers, and errors as users see them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel
from typer.testing import CliRunner, Result

from cinestrata_client import NotFoundError
from cinestrata_schemas.access import KeySpec, UserPatch, UserSpec
from cinestrata_schemas.syncs import SyncSpec
from cinestrata_schemas.tasks import AppendSpec, TaskSpec, VideoSpec
from cinestrata_schemas.videos import VideoPatch
from cinestrata_schemas.webhooks import WebhookSpec
from cli.http_access_client import HttpAccessClient
from cli.http_service_client import HttpServiceClient
from cli.in_process_service_client import InProcessServiceClient
from cli.main import app
from service.core.settings import Settings
from tests.api.browser import serve
from tests.api.conftest import client, configured, learned_folder, library, rendered_world, world
from tests.cli.http_problems import problem

__all__ = ["client", "configured", "learned_folder", "library", "rendered_world", "world"]

URL = "http://127.0.0.1:9"
VIDEO = VideoSpec(uri="a.mp4", captions=["an owl"], split="test")
VIDEO_JSON = {"uri": "a.mp4", "captions": ["an owl"], "split": "test"}
Respond = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[Respond], list[httpx.Request]]:
    """Answer all requests of the process, without pauses between repetitions; returns them."""
    made = httpx.Client
    monkeypatch.setattr("time.sleep", lambda _: None)

    def install(respond: Respond) -> list[httpx.Request]:
        requests: list[httpx.Request] = []

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            return respond(request)

        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(httpx, "Client", lambda **how: made(**{**how, "transport": transport}))
        return requests

    return install


def cinestrata(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--url", URL])


@pytest.mark.parametrize(
    ("call", "request_line", "body"),
    [
        (
            lambda c: c.create_task(TaskSpec(name="owls", method="strata", videos=[VIDEO]), "key"),
            "POST /v1/tasks",
            {"name": "owls", "method": "strata", "videos": [VIDEO_JSON]},
        ),
        (
            lambda c: c.append_videos("t", AppendSpec(videos=[VIDEO]), "key"),
            "POST /v1/tasks/t/videos",
            {"videos": [VIDEO_JSON]},
        ),
        (lambda c: c.relearn("t"), "POST /v1/tasks/t/relearn", {"name": None}),
        (lambda c: c.relearn("t", "owls"), "POST /v1/tasks/t/relearn", {"name": "owls"}),
        (
            lambda c: c.edit_video("a/ü", VideoPatch(metadata={"camera": 2, "place": None})),
            "PATCH /v1/videos/a%2F%C3%BC",
            {"metadata": {"camera": 2, "place": None}},
        ),
        (
            lambda c: c.register_sync(SyncSpec(name="owls", source="owls", every_seconds=60)),
            "POST /v1/syncs",
            {
                "name": "owls",
                "source": "owls",
                "every_seconds": 60,
            },
        ),
        (
            lambda c: c.create_webhook(WebhookSpec(url="https://a.example", events=["task.ready"])),
            "POST /v1/webhooks",
            {"url": "https://a.example", "events": ["task.ready"]},
        ),
        (
            lambda c: c.serve_release("new est", dry_run=True),
            "POST /v1/releases/new%20est/serve",
            {"dry_run": True},
        ),
    ],
)
def test_request_has_the_fields_that_are_set(
    answers: Callable[[Respond], list[httpx.Request]],
    call: Callable[[HttpServiceClient], Any],
    request_line: str,
    body: dict[str, Any],
) -> None:
    (request,) = _refused(answers, lambda: call(HttpServiceClient(URL)))
    assert f"{request.method} {request.url.raw_path.decode()}" == request_line
    assert json.loads(request.content) == body
    key = request.headers.get("Idempotency-Key", "key")
    is_generated = request_line.endswith("/relearn")  # by the client, which repeats requests
    assert len(key) == 32 if is_generated else key == "key"


@pytest.mark.parametrize(
    ("call", "request_line", "body"),
    [
        (
            lambda c: c.create_key(KeySpec(name="nightly", scope="ingest", expires_in_days=30)),
            "POST /v1/keys",
            {"name": "nightly", "scope": "ingest", "expires_in_days": 30},
        ),
        (
            lambda c: c.create_user(UserSpec(name="ada", password="correct horse", scope="admin")),
            "POST /v1/users",
            {"name": "ada", "password": "correct horse", "scope": "admin"},
        ),
        (
            lambda c: c.edit_user("ada/b", UserPatch(password="another horse")),
            "PATCH /v1/users/ada%2Fb",
            {"password": "another horse"},
        ),
        (lambda c: c.edit_user("ada", UserPatch(scope="search")), "PATCH /v1/users/ada", {"scope": "search"}),
    ],
)
def test_request_about_keys_and_users_has_the_fields_that_are_set(
    answers: Callable[[Respond], list[httpx.Request]],
    call: Callable[[HttpAccessClient], Any],
    request_line: str,
    body: dict[str, Any],
) -> None:
    (request,) = _refused(answers, lambda: call(HttpAccessClient(URL)))
    assert f"{request.method} {request.url.raw_path.decode()}" == request_line
    assert json.loads(request.content) == body


def _refused(
    answers: Callable[[Respond], list[httpx.Request]], call: Callable[[], Any]
) -> list[httpx.Request]:
    requests = answers(lambda _: problem(404, "enough"))
    with pytest.raises(NotFoundError):
        call()
    return requests


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
        (
            problem(503, "The model is loading.", **{"Retry-After": "30"}),
            ["The model is loading."],
        ),
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
                "The service sent an answer of an unknown form (list[TaskDetails]).",
                "Check that service and command have the same version: cinestrata --version",
            ],
        ),
        (
            httpx.ConnectError("[Errno 111] Connection refused"),
            [
                "The service does not answer: [Errno 111] Connection refused",
                "Check that it runs and that --url is correct. To start it: cinestrata up",
            ],
        ),
        (
            httpx.ReadTimeout(""),
            [
                "The service does not answer: ReadTimeout",
                "Check that it runs and that --url is correct. To start it: cinestrata up",
            ],
        ),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_error_of_a_request_is_a_sentence_with_a_hint(
    answers: Callable[[Respond], list[httpx.Request]],
    response: httpx.Response | Exception,
    shown: list[str],
    options: list[str],
) -> None:
    def respond(_: httpx.Request) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        return response

    requests = answers(respond)
    outcome = cinestrata("tasks", "list", *options)
    status = 2 if isinstance(response, httpx.Response) and response.status_code == 422 else 1
    assert (outcome.exit_code, outcome.stdout, outcome.stderr.splitlines()) == (status, "", shown)
    assert len(requests) == (3 if isinstance(response, Exception) else 1)


@pytest.mark.parametrize("command", [("tasks", "list"), ("keys", "list")])
@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://", "http://[::1", "http://host:99999", "ftp://host"]
)
def test_malformed_url_is_reported(command: tuple[str, str], url: str) -> None:
    outcome = CliRunner().invoke(app, [*command, "--url", url])
    assert outcome.exit_code == 2
    assert f"{url!r} is not a URL" in outcome.stderr
    assert "--url" in outcome.stderr


@pytest.mark.parametrize("key", ["schlüssel", "secret\n", "secret\x7f"])
def test_malformed_key_is_reported_without_it(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("CINESTRATA_API_KEY", key)
    outcome = cinestrata("tasks", "list")
    assert outcome.exit_code == 2
    assert "CINESTRATA_API_KEY" in outcome.stderr
    assert key.strip() not in outcome.stderr


def test_page_of_a_video_is_below_the_url_of_the_service() -> None:
    address = HttpServiceClient("https://a.example/search/").playback_address("a/b c")
    assert address == "https://a.example/search/watch/a%2Fb%20c"


@pytest.fixture(scope="module")
def address(client: TestClient, library: list[str]) -> Iterator[str]:
    """URL of a service with two learned domains."""
    with serve(client.app) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        lambda c, task: c.tasks(),
        lambda c, task: [c.task(task)],
        lambda c, task: list(c.task_videos(task)),
        lambda c, task: [c.videos(task=task, limit=2, sort="-id")],
        lambda c, task: c.releases(),
        lambda c, task: [c.forgetting()],
        lambda c, task: [c.audit(limit=5)],
        lambda c, task: [c.similar(next(c.task_videos(task)).id, 2, "task")],
        lambda c, task: c.search("a car", 3, [task], None, where={"duration": {"min": 1}}).results,
        lambda c, task: c.search("a red car", 3, None, "pinned").results,
        lambda c, task: [c.serve_release("newest", dry_run=True)],
    ],
)
def test_answers_over_http_are_those_of_the_data_folder(
    address: str, configured: Settings, library: list[str], read: Callable[[Any, str], list[BaseModel]]
) -> None:
    local = read(InProcessServiceClient(configured.data_dir), library[0])
    remote = read(HttpServiceClient(address), library[0])
    assert [model.model_dump_json() for model in remote] == [model.model_dump_json() for model in local]
    assert [type(model) for model in remote] == [type(model) for model in local]


@pytest.mark.slow
def test_forgetting_table_shows_the_recall_of_each_domain(
    address: str, client: TestClient, library: list[str]
) -> None:
    matrix = client.get("/forgetting").json()
    outcome = CliRunner().invoke(app, ["forgetting", "--url", address])
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.output.splitlines()
    assert max(map(len, lines)) <= 80
    for number, name in enumerate(matrix["tasks"]):
        (row,) = [line.split() for line in lines if line.startswith(name)]
        local, everywhere = (
            [row[number] for row in matrix[f"matrix_{gallery}"] if row[number] is not None]
            for gallery in ("local", "global")
        )
        assert row[1] == str(max(row[number] for row in matrix["queries"]))
        assert (row[2], row[3]) == (f"{local[0]:.0%}", f"{local[-1]:.0%}")
        assert (row[5], row[6]) == (f"{everywhere[0]:.0%}", f"{everywhere[-1]:.0%}")
        assert float(row[7]) == pytest.approx(100 * (everywhere[0] - everywhere[-1]), abs=0.06)
    assert "Router accuracy" in outcome.output
    document = CliRunner().invoke(app, ["forgetting", "--url", address, "--json"])
    assert json.loads(document.stdout)["mode"] == "pinned"
