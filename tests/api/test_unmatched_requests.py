"""Unsupported methods on known paths, HEAD, and unknown paths for browsers and programs."""

from __future__ import annotations

import time

import pytest
from fastapi.testclient import TestClient

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
