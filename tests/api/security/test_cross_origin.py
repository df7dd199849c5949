"""Cross-origin requests: none by default, keys only for the listed origins, never cookies."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr, ValidationError

from api.app import create_app
from api.security.authentication import SESSION_COOKIE
from service.core.settings import Settings
from tests.api.conftest import BASE_URL

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
    assert "X-API-Key" in allowed["access-control-allow-headers"]
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
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert set(names.lower().replace(" ", "").split(",")) <= set(allowed)
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
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"Mcp-Session-Id", "WWW-Authenticate", "Location", "Upload-Offset"} <= set(exposed)


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
    foreign, own = {"Origin": LISTED, **site}, {"Origin": BASE_URL, "Sec-Fetch-Site": "same-origin"}
    keyed.cookies.clear()
    assert keyed.delete("/v1/videos/x", headers={**cookie, **foreign}).status_code == 401
    assert keyed.delete("/v1/videos/x", headers={**cookie, **own}).status_code == 404
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
    own = {"Origin": BASE_URL, "Sec-Fetch-Site": "same-origin"}
    assert shared.delete("/v1/videos/x", headers=own).status_code == 404
    assert shared.delete("/v1/videos/x").status_code == 404


def test_errors_and_their_headers_are_readable_by_listed_origins(shared: TestClient) -> None:
    answer = shared.get("/v1/tasks?limit=0", headers={"Origin": LISTED})
    assert answer.status_code == 422
    assert answer.headers["access-control-allow-origin"] == LISTED
    assert "X-Request-ID" in answer.headers["access-control-expose-headers"]


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
