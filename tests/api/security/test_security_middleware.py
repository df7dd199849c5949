"""API keys, origins, hosts, body limits, security headers, and cross-origin requests of listed origins."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr, ValidationError

from api import request_middleware
from api.app import create_app
from api.security.authentication import SESSION_COOKIE, is_loopback
from service.core.settings import Settings
from tests.api.conftest import BASE_URL, SECRET


def test_network_address_needs_a_key_of_16_characters(configured: Settings) -> None:
    for key in (None, SecretStr("fifteen charact")):
        with pytest.raises(ValueError, match="CINESTRATA_API_KEY"):
            create_app(configured.model_copy(update={"host": "0.0.0.0", "api_key": key}))
    create_app(configured.model_copy(update={"api_key": SecretStr("short")}))  # on loopback


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X-API-Key": "wrong"}, 401),
        ({"X-API-Key": "wröng"}, 401),
        ({"X-API-Key": SECRET}, 200),
        ({"Authorization": "Bearer " + SECRET}, 200),
        ({"Authorization": "Basic " + SECRET}, 401),
    ],
)
def test_api_key_is_required(guarded: TestClient, headers: dict[str, str], status: int) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    answer = guarded.get("/tasks", headers=encoded)
    assert answer.status_code == status
    if status == 401:
        assert answer.headers["content-type"] == "application/problem+json"
        assert "Bearer" in answer.headers["www-authenticate"]


def test_health_is_public_and_pages_redirect_to_sign_in(guarded: TestClient) -> None:
    assert guarded.get("/livez").status_code == 200
    assert guarded.get("/livezzz").status_code == 404
    assert guarded.get("/metrics").status_code == 401
    assert guarded.get("/static/styles/base.css").status_code == 200
    page = guarded.get("/admin", follow_redirects=False)
    assert (page.status_code, page.headers["location"]) == (303, "/login?next=/admin")
    page = guarded.get("/?q=a%26b&x=1", follow_redirects=False)
    assert page.headers["location"] == "/login?next=/%3Fq%3Da%2526b%26x%3D1"


def test_non_ascii_key_is_accepted(configured: Settings) -> None:
    secured = configured.model_copy(update={"api_key": SecretStr("schlüssel")})
    client = TestClient(create_app(secured), base_url=BASE_URL)
    assert client.get("/tasks", headers={"X-API-Key": "schlüssel".encode()}).status_code == 200


def test_same_origin_request_passes_a_proxy_that_renames_the_host(guarded: TestClient) -> None:
    headers = {"X-API-Key": SECRET, "Origin": "https://videos.example.org", "Sec-Fetch-Site": "same-origin"}
    assert guarded.post("/tasks/none/cancel", headers=headers).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_cross_site_changes_return_403(client: TestClient, headers: dict[str, str]) -> None:
    answer = client.post("/tasks", json={"name": "x", "videos": []}, headers=headers)
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "application/problem+json"
    answer = client.post("/tasks", json={"name": "x", "videos": []}, headers={"Origin": BASE_URL})
    assert answer.status_code == 422


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::1"])
def test_loopback_server_refuses_other_host_names(client: TestClient, host: str) -> None:
    assert client.get("/livez", headers={"Host": host}).status_code == 403
    for name in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/livez", headers={"Host": name}).status_code == 200


def test_all_responses_have_security_headers(client: TestClient) -> None:
    for path in ("/", "/admin", "/domains/x", "/docs", "/tasks", "/nowhere", "/static/search_page.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; "), path
        assert "frame-ancestors 'none'" in policy
        for exception in ("unsafe", "nonce-", "sha256-", "*", "http:", "https:"):
            assert exception not in policy, path
        assert headers["x-content-type-options"] == "nosniff"


def test_unexpected_error_reveals_no_internals(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(task_id: str) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr("service.tasks.commands.get_task", broken)
    answer = client.get("/tasks/any")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "hunter2" not in answer.text
    assert answer.json()["title"] == "Internal error"


@pytest.mark.parametrize("length", [str(10**12), "9" * 6000])
def test_declared_large_body_returns_413(client: TestClient, length: str) -> None:
    for path in ("/tasks", "/login", "/tasks/x/cancel", "/search/clip"):
        answer = client.post(path, content=b"", headers={"Content-Length": length})
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"


def test_length_with_many_leading_zeros_is_read(client: TestClient) -> None:
    answer = client.post("/tasks/x/cancel", content=b"", headers={"Content-Length": "0" * 5000})
    assert answer.status_code == 404


def test_large_chunked_body_returns_413(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_middleware, "_MAX_TASK_BYTES", 4 * 2**20)
    chunks = (b" " * 2**20 for _ in range(5))
    answer = client.post("/tasks", content=chunks, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_loopback_names() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "example.org", "", "localhost.evil"))


def test_health_checks_of_a_network_address_accept_any_host(guarded: TestClient) -> None:
    for host in ("10.42.0.17:8000", "cinestrata-7d9f:8000"):
        assert (
            guarded.get("/livez", headers={"Host": host, "User-Agent": "kube-probe/1.31"}).status_code == 200
        )


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "br", "deflate", "zstd", "gzip, gzip", "GZIP"])
@pytest.mark.parametrize("path", ["/search", "/v1/tasks", "/mcp"])
def test_compressed_bodies_are_refused(guarded: TestClient, encoding: str, path: str) -> None:
    headers = {"X-API-Key": SECRET, "Content-Encoding": encoding, "Content-Type": "application/json"}
    answer = guarded.post(path, content=b"{}", headers=headers)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert answer.json()["detail"].startswith("Content-Encoding: Compressed bodies are not accepted")


@pytest.mark.parametrize("encoding", ["identity", "", "Identity"])
def test_plain_bodies_may_name_their_encoding(guarded: TestClient, encoding: str) -> None:
    headers = {"X-API-Key": SECRET, "Content-Encoding": encoding}
    answer = guarded.post("/tasks", json={"name": "a/b", "videos": []}, headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "name")


KEY = "key-of-a-page-of-another-origin"
LISTED, OTHER = "https://app.example.com", "https://evil.example.com"


@pytest.fixture(scope="module")
def shared(configured: Settings) -> TestClient:
    """The application with one listed origin."""
    listed = configured.model_copy(update={"cors_origins": (LISTED,)})
    return TestClient(create_app(listed), base_url=BASE_URL, raise_server_exceptions=False)


def _preflight(client: TestClient, origin: str) -> dict[str, str]:
    answer = client.options(
        "/v1/search",
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type, x-api-key",
        },
    )
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def test_no_origin_is_allowed_by_default(client: TestClient) -> None:
    assert _preflight(client, LISTED) == {}
    assert "access-control-allow-origin" not in client.get("/livez", headers={"Origin": LISTED}).headers


def test_listed_origin_passes_the_preflight_without_credentials(shared: TestClient) -> None:
    allowed = _preflight(shared, LISTED)
    assert allowed["access-control-allow-origin"] == LISTED
    assert "x-api-key" in allowed["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed
    assert "access-control-allow-origin" not in _preflight(shared, OTHER)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("POST", "accept,authorization,baggage,content-type,last-event-id,mcp-method,mcp-name,"
         "mcp-protocol-version,mcp-session-id,traceparent,tracestate,x-api-key"),
        ("POST", "Content-Type, MCP-Protocol-Version"),
        ("DELETE", "mcp-session-id"),
        ("GET", "last-event-id"),
    ],
)  # fmt: skip
def test_listed_origin_may_send_the_headers_of_agents(shared: TestClient, method: str, names: str) -> None:
    headers = {
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": names,
        "Access-Control-Request-Private-Network": "true",
    }
    answer = shared.options("/mcp", headers={"Origin": LISTED, **headers})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, LISTED)
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert answer.headers["access-control-allow-headers"] == names
    for origin in (OTHER, "null", f"{LISTED}.evil.example", "http://app.example.com"):
        refused = shared.options("/mcp", headers={"Origin": origin, **headers})
        assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (400, None)
        assert shared.post("/mcp", headers={"Origin": origin}, json={}).status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("POST", "/mcp", KEY, 200),
        ("POST", "/mcp", "", 401),
        ("GET", "/mcp", KEY, 405),
        ("POST", "/x", KEY, 404),
    ],
)
def test_every_answer_to_an_agent_is_readable_by_listed_origins(
    keyed: TestClient, method: str, path: str, key: str, status: int
) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = keyed.request(method, path, json=message, headers={"Origin": LISTED, "X-API-Key": key})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, LISTED)
    assert answer.headers["access-control-expose-headers"] == "*"


@pytest.fixture(scope="module")
def keyed(configured: Settings) -> TestClient:
    """The application with one listed origin, and a key."""
    changes = {"cors_origins": (LISTED,), "api_key": SecretStr(KEY)}
    return TestClient(
        create_app(configured.model_copy(update=changes)), base_url=BASE_URL, raise_server_exceptions=False
    )


@pytest.mark.parametrize(
    ("origin", "key", "status"), [(LISTED, KEY, 404), (LISTED, "", 401), (OTHER, KEY, 403)]
)
def test_only_listed_origins_with_a_key_may_change_state(
    keyed: TestClient, origin: str, key: str, status: int
) -> None:
    headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "X-API-Key": key}
    answer = keyed.delete("/v1/videos/x", headers=headers)
    assert answer.status_code == status
    assert answer.headers.get("access-control-allow-origin") == (LISTED if origin == LISTED else None)
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize("site", [{"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site"}, {}])
def test_listed_origin_does_not_act_with_the_session_of_a_browser(
    keyed: TestClient, site: dict[str, str]
) -> None:
    """Browsers send the cookie of a host to all of its ports, and SameSite=Lax permits it between subdomains."""
    signed_in = keyed.post("/login", data={"key": KEY}, follow_redirects=False)
    assert signed_in.status_code == 303
    cookie = {"Cookie": f"{SESSION_COOKIE}={signed_in.cookies[SESSION_COOKIE]}"}
    foreign, same_origin = {"Origin": LISTED, **site}, {"Origin": BASE_URL, "Sec-Fetch-Site": "same-origin"}
    keyed.cookies.clear()
    assert keyed.delete("/v1/videos/x", headers={**cookie, **foreign}).status_code == 401
    assert keyed.delete("/v1/videos/x", headers={**cookie, **same_origin}).status_code == 404
    assert keyed.get("/v1/tasks", headers={**cookie, "Sec-Fetch-Site": "cross-site"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/maintenance"), ("DELETE", "/v1/videos/x"), ("PATCH", "/v1/videos/x")]
)
@pytest.mark.parametrize("site", [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {}])
def test_listed_origin_changes_nothing_on_a_service_without_keys(
    shared: TestClient, method: str, path: str, site: dict[str, str]
) -> None:
    answer = shared.request(method, path, json={}, headers={"Origin": LISTED, "X-API-Key": "any", **site})
    assert answer.status_code == 403
    assert "this service has none" in answer.json()["detail"]
    assert answer.headers["access-control-allow-origin"] == LISTED
    same_origin = {"Origin": BASE_URL, "Sec-Fetch-Site": "same-origin"}
    assert shared.delete("/v1/videos/x", headers=same_origin).status_code == 404
    assert shared.delete("/v1/videos/x").status_code == 404


def test_errors_and_their_headers_are_readable_by_listed_origins(shared: TestClient) -> None:
    answer = shared.get("/v1/tasks?limit=0", headers={"Origin": LISTED})
    assert answer.status_code == 422
    assert answer.headers["access-control-allow-origin"] == LISTED
    assert answer.headers["access-control-expose-headers"] == "*"


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "app.example.com",
        "https://app.example.com/",
        "https://*.example.com",
        "HTTPS://app.example.com",
    ],
)
def test_values_other_than_origins_are_refused(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    monkeypatch.setenv("CINESTRATA_CORS_ORIGINS", f"{LISTED}, {origin}")
    with pytest.raises(ValidationError, match="not an origin"):
        Settings()
