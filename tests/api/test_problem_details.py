"""Invalid requests, unsupported methods, unknown paths and the prefix ``/v1``: what answers say, and their hints."""

from __future__ import annotations

import json
import time

import pytest
from fastapi.testclient import TestClient
from starlette.types import Receive, Scope, Send

from api.request_middleware import UnexpectedErrorMiddleware

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
        (
            "/tasks",
            {"videos": [], "zzz": 1},
            "zzz",
            "Known fields: backbone, method, name, read, settings, videos.",
        ),
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


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def wait_until_ready(client: TestClient) -> None:
    """Wait for the first look at the index, which a thread takes after the start."""
    deadline = time.monotonic() + 60
    while client.get("/readyz").status_code == 503:
        assert time.monotonic() < deadline, "the service does not become ready"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/tasks", "GET, POST"),
        ("DELETE", "/v1/search", "GET, POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
        ("PUT", "/videos/x", "DELETE, GET, PATCH"),
        ("GET", "/tasks/x/cancel", "POST"),
        ("HEAD", "/tasks", "GET, POST"),
        ("PUT", "/static/theme.js", "GET, HEAD"),
    ],
)
def test_other_method_is_answered_with_the_allowed_ones(
    client: TestClient, method: str, path: str, allowed: str
) -> None:
    answer = client.request(method, path, headers=BROWSER)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        assert answer.json()["detail"] == f"This path does not support {method}; it supports {allowed}."


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/", "/admin", "/login", "/domains/x", "/watch/x", "/openapi.json"]
)
def test_head_answers_like_get(client: TestClient, path: str) -> None:
    wait_until_ready(client)
    head, get = (client.request(method, path, follow_redirects=False) for method in ("HEAD", "GET"))
    assert head.status_code == get.status_code
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize(
    "path", ["/nope", "/domains", "/v1/nope", "/static/nope", "/<script>alert(1)</script>"]
)
def test_unknown_path_is_a_page_for_browsers_only(client: TestClient, path: str) -> None:
    page = client.get(path, headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert '<a href="/">Search videos</a>' in page.text
    assert "alert(1)" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for accept in ("application/json", "*/*"):
        answer = client.get(path, headers={"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert client.post(path, headers=BROWSER).headers["content-type"] == "application/problem+json"


def test_body_other_than_an_object_is_named(client: TestClient) -> None:
    answer = client.post("/maintenance", json=[])
    assert (answer.status_code, answer.json()["detail"]) == (422, "body: The body is not a JSON object.")


TUS = {"Tus-Resumable": "1.0.0", "Upload-Length": "3"}


@pytest.mark.parametrize(
    "path", ["/livez", "/tasks", "/forgetting", "/videos?limit=1", "/tasks?limit=0", "/videos/x"]
)
def test_both_paths_reach_the_same_route(client: TestClient, path: str) -> None:
    short, versioned = client.get(path), client.get(f"/v1{path}")
    assert short.status_code == versioned.status_code
    body, expected = versioned.json(), short.json()
    if versioned.is_error:
        assert body["instance"] == f"/v1{expected['instance']}"
        body["instance"] = expected["instance"]
    assert body == expected


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_location_keeps_the_prefix_of_the_request(client: TestClient, prefix: str) -> None:
    upload = client.post(f"{prefix}/uploads", headers=TUS)
    assert upload.headers["location"].startswith(f"{prefix}/uploads/upl_")
    assert client.head(upload.headers["location"], headers=TUS).status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/admin", "/v1/login", "/v1/static/logo.svg", "/v1/v1/tasks", "/v2/tasks"]
)
def test_pages_and_other_versions_have_no_prefix(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["type"] == "urn:cinestrata:problem:not-found"
