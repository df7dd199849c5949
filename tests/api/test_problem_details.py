"""Invalid requests are refused with a field and a hint, and unexpected errors become problems."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from api.problem_details import UnexpectedErrorMiddleware

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "name", "hint"),
    [
        ("/search?q=a+taxi&min_durtion=3", "min_durtion", "Did you mean 'min_duration'?"),
        ("/search?q=a+taxi&zzz=red", "zzz", "Known parameters: arrived_after, "),
        ("/videos/vid_1/similar?where=%7B%7D", "where", "Known parameters: k, min_score, scope."),
        ("/videos/vid_1/captions?task=night", "task", "Known parameters: k, scope."),
        ("/videos?statsu=accepted", "statsu", "Did you mean 'status'?"),
        ("/tasks?stat=ready", "stat", "Did you mean 'state'?"),
        ("/releases?task_id=tsk_1", "task_id", "Did you mean 'task'?"),
    ],
)
def test_unknown_query_parameter_returns_422(client: TestClient, path: str, name: str, hint: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert wrong["field"] == name
    assert "parameter does not exist" in wrong["message"]
    assert wrong["hint"].startswith(hint)


@pytest.mark.parametrize(
    ("path", "body", "field", "hint"),
    [
        ("/tasks", {"metod": "analytic", "videos": [{"uri": "a.mp4"}]}, "metod", "Did you mean 'method'?"),
        (
            "/tasks",
            {"videos": [{"uri": "a.mp4", "caption": "a"}]},
            "videos[0].caption",
            "Did you mean 'captions'?",
        ),
        (
            "/tasks",
            {"videos": [{"uri": "a.mp4", "transcript": [{"start": 0, "end": 1, "txt": "a"}]}]},
            "videos[0].transcript[0].txt",
            "Did you mean 'text'?",
        ),
        ("/tasks", {"videos": [], "zzz": 1}, "zzz", "Known fields: method, name, settings, videos."),
        ("/tasks/tsk_1/videos", {"video": []}, "video", "Did you mean 'videos'?"),
        ("/search", {"queries": [{"q": "a", "min_durtion": 3}]}, "queries[0].min_durtion", "Did you mean"),
    ],
)
def test_unknown_field_of_a_body_has_a_hint(
    client: TestClient, path: str, body: object, field: str, hint: str
) -> None:
    answer = client.post(path, content=json.dumps(body), headers=JSON)
    assert answer.status_code == 422
    errors = {wrong["field"]: wrong for wrong in answer.json()["errors"]}
    assert "does not exist" in errors[field]["message"]
    assert errors[field]["hint"].startswith(hint)


_TASK = b'{"name": "night", "videos": '


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/search", b'{"queries": [' + b"0," * 9999 + b"0]}", "queries[0]", "dictionary"),
        ("/search", b'{"queries": [{"q": ""}' + b',{"q": ""}' * 9999 + b"]}", "queries", "too long"),
        ("/tasks", _TASK + b"[" + b"0," * 9999 + b"0]}", "videos[0]", "object"),
        ("/tasks", _TASK + b'[{"uri": "a", "captions": [' + b"0," * 9999 + b"0]}]}", "captions[0]", "text"),
        (
            "/tasks",
            _TASK + b'[{"uri": "a"' + b"".join(b',"%d":0' % n for n in range(9999)) + b"}]}",
            "videos[0]",
            "10000 fields",
        ),
        (
            "/tasks",
            b'{"name": "a", "videos": [{"uri": "a"}], "settings": {"a":[]'
            + b"".join(b',"%d":[]' % n for n in range(9999))
            + b"}}",
            "settings",
            "10000 fields",
        ),
    ],
)
def test_large_invalid_body_has_one_error(
    client: TestClient, path: str, body: bytes, field: str, message: str
) -> None:
    answer = client.post(path, content=body, headers=JSON)
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert wrong["field"].endswith(field)
    assert message in wrong["message"]


def test_multipart_body_without_boundary_is_refused_with_a_hint(client: TestClient) -> None:
    answer = client.post("/search/clip", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert answer.status_code == 400
    assert "-F" in answer.json()["detail"]


@pytest.mark.parametrize("has_started", [False, True])
def test_error_in_a_response_reaches_the_server(has_started: bool) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        if has_started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("broken")

    client = TestClient(UnexpectedErrorMiddleware(fail))
    if has_started:  # a problem cannot follow the beginning of another response
        with pytest.raises(ValueError, match="broken"):
            client.get("/")
    else:
        assert client.get("/").status_code == 500
