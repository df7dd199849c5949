"""Sign-in of browsers, keys and users over HTTP, and their rate limits."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher
from fastapi.testclient import TestClient

from api.app import create_app
from api.pages import sign_in_pages
from api.security.authentication import SESSION_COOKIE
from cinestrata_schemas.access import KeySpec
from service.access import users
from service.access.credentials import create_key, note_change
from service.catalog.database import session_scope
from service.catalog.operation_tables import ApiKey, BrowserSession, User
from service.core.settings import Settings
from tests.api.conftest import SECRET
from tests.audited_changes import audit_entries

ADMIN = {"X-API-Key": SECRET}
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def clean_access(configured: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Password hashing in milliseconds, and a catalog without keys and users after each test."""
    monkeypatch.setattr(users, "_hasher", PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    users._unknown_hash.cache_clear()
    yield
    with session_scope(write=True) as session:
        for table in (BrowserSession, ApiKey, User):
            session.query(table).delete()
    note_change()


def _user(client: TestClient, name: str = "Ada", scope: str = "search") -> str:
    body = {"name": name, "password": PASSWORD, "scope": scope}
    answer = client.post("/users", json=body, headers=ADMIN)
    assert answer.status_code == 201, answer.text
    user_id: str = answer.json()["id"]
    return user_id


def _sign_in(client: TestClient, **fields: str) -> int:
    return client.post("/login", data={"name": "Ada", "password": PASSWORD, **fields}).status_code


def test_user_signs_in_and_out(guarded: TestClient) -> None:
    user_id = _user(guarded, scope="search")
    answer = guarded.post("/login", data={"name": " ADA ", "password": PASSWORD, "next": "/watch/v1?q=a"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/watch/v1?q=a")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "secure" not in cookie
    assert guarded.get("/access/current").json() == {"kind": "user", "name": "Ada", "scope": "search"}
    assert guarded.get("/audit").status_code == 403
    assert guarded.get("/access").status_code == 403
    assert 'href="/access"' not in guarded.get("/").text
    assert 'href="/access"' not in guarded.get("/docs").text
    assert 'href="/access"' in guarded.get("/docs", headers=ADMIN).text
    sessions = guarded.get("/sessions", headers=ADMIN).json()
    assert [(each["user"], each["address"]) for each in sessions] == [("Ada", "testclient")]
    token = guarded.cookies[SESSION_COOKIE]
    guarded.post("/logout")
    guarded.cookies.set(SESSION_COOKIE, token)
    assert guarded.get("/access/current").status_code == 401
    actions = [(e.action, e.actor) for e in audit_entries(action=["session"])][-2:]
    assert actions == [("session.start", "Ada"), ("session.end", "Ada")]
    assert guarded.delete(f"/users/{user_id}", headers=ADMIN).status_code == 200


def test_cookie_on_https_belongs_to_one_host(guarded: TestClient) -> None:
    _user(guarded)
    site = "https://search.example.org"
    set_cookie = guarded.post(
        f"{site}/login", data={"name": "Ada", "password": PASSWORD}, follow_redirects=False
    ).headers["set-cookie"]
    assert set_cookie.startswith(f"__Host-{SESSION_COOKIE}=")
    assert "secure" in set_cookie.lower()
    assert "path=/;" in set_cookie.lower()
    token = set_cookie.partition("=")[2].partition(";")[0]
    guarded.cookies.clear()
    planted = {"Cookie": f"{SESSION_COOKIE}={token}"}  # the name that another subdomain can set
    assert guarded.get(f"{site}/access/current", headers=planted).status_code == 401
    signed_in = {"Cookie": f"__Host-{SESSION_COOKIE}={token}"}
    assert guarded.get(f"{site}/access/current", headers=signed_in).status_code == 200
    deleted = guarded.post(f"{site}/logout", headers=signed_in, follow_redirects=False).headers["set-cookie"]
    assert deleted.startswith(f"__Host-{SESSION_COOKIE}=")
    assert "secure" in deleted.lower()  # browsers ignore the deletion without it
    assert guarded.get(f"{site}/access/current", headers=signed_in).status_code == 401


@pytest.mark.parametrize("path", ["/keys", "/users", "/sessions", "/audit", "/webhooks", "/syncs"])
def test_answers_are_not_stored(guarded: TestClient, path: str) -> None:
    answer = guarded.get(path, headers=ADMIN)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")


def test_sessions_are_revoked_by_an_administrator(guarded: TestClient) -> None:
    _user(guarded)
    _sign_in(guarded)
    (session,) = guarded.get("/sessions", headers=ADMIN).json()
    assert guarded.delete(f"/sessions/{session['id']}", headers=ADMIN).status_code == 204
    assert guarded.get("/access/current").status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/a\r\nSet-Cookie: x=1",
        "",
    ],
)
def test_sign_in_redirects_to_own_pages_only(guarded: TestClient, target: str) -> None:
    _user(guarded)
    answer = guarded.post("/login", data={"name": "Ada", "password": PASSWORD, "next": target})
    assert answer.headers["location"] == "/"
    assert "evil" not in guarded.get("/login", params={"next": target}).text


def test_wrong_passwords_are_limited_per_address_and_name(guarded: TestClient) -> None:
    _user(guarded)
    assert [_sign_in(guarded, password=f"wrong {number}") for number in range(11)] == [401] * 10 + [429]
    limited = guarded.post("/login", data={"name": "Ada", "password": PASSWORD})
    assert limited.status_code == 429
    assert 1 <= int(limited.headers["retry-after"]) <= 301
    assert _sign_in(guarded, name="other") == 429
    guarded.app.state.authenticator.failures.flush()  # type: ignore[attr-defined]
    entry = audit_entries(action=["session.fail"])[-1]
    assert (entry.details["attempts"], entry.details["refused"]) == (13, 3)
    assert PASSWORD not in entry.model_dump_json()


def test_success_resets_the_count_of_the_name(guarded: TestClient) -> None:
    _user(guarded)
    limits = guarded.app.state.authenticator.limits  # type: ignore[attr-defined]
    for number in range(9):
        assert _sign_in(guarded, password=f"wrong {number}") == 401
    assert _sign_in(guarded) == 303
    limits.check(_limit(), "10.9.9.9", "ada")
    limits.count_failure(_limit(), "10.9.9.9", "ada")
    limits.check(_limit(), "10.9.9.9", "ada")


def _limit():  # type: ignore[no-untyped-def]
    from service.access.failed_attempts import SIGN_IN_LIMIT

    return SIGN_IN_LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_passwords_are_hashed_with_a_lower_priority_than_searches(
    guarded: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities = []

    def verify(password: str, stored: str | None) -> bool:
        priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return False

    monkeypatch.setattr(sign_in_pages, "verify_password", verify)
    assert _sign_in(guarded) == 401
    assert priorities[0] > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_long_and_hostile_credentials_are_wrong_ones(guarded: TestClient) -> None:
    _user(guarded)
    assert _sign_in(guarded, password="x" * 4000) == 401
    assert _sign_in(guarded, password="x" * 5000) == 422
    assert guarded.post("/login", data={"name": "a\0\ud7ff", "password": "\0"}).status_code == 401
    page = guarded.post("/login", data={"name": '"><script>alert(1)</script>', "password": "x"})
    assert "<script>alert" not in page.text
    for key in ("cine_", "x" * 100_00, "cine_" + "a" * 12 + "_" + "b" * 43):
        assert guarded.get("/tasks", headers={"X-API-Key": key}).status_code == 401


def test_flood_of_wrong_keys_leaves_valid_keys_alone(guarded: TestClient) -> None:
    valid = guarded.post("/keys", json={"name": "valid", "scope": "search"}, headers=ADMIN).json()["key"]
    assert guarded.get("/access/current", headers={"X-API-Key": valid}).status_code == 200
    statuses = [guarded.get("/tasks", headers={"X-API-Key": f"wrong {n}"}).status_code for n in range(70)]
    assert statuses == [401] * 60 + [429] * 10
    assert guarded.get("/tasks", headers={"X-API-Key": "wrong"}).headers["retry-after"]
    assert guarded.get("/access/current", headers={"X-API-Key": valid}).status_code == 200
    assert guarded.get("/access/current", headers=ADMIN).status_code == 200
    assert guarded.get("/livez", headers={"X-API-Key": "wrong"}).status_code == 200


def test_guesses_of_the_environment_key_are_limited(guarded: TestClient) -> None:
    statuses = [guarded.get("/tasks", headers={"X-API-Key": f"guess {n}"}).status_code for n in range(61)]
    assert statuses == [401] * 60 + [429]
    assert guarded.get("/tasks", headers=ADMIN).status_code == 429


def test_key_in_an_address_is_refused_and_recorded_without_the_key(
    guarded: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    leaked = create_key(KeySpec(name="leaked", scope="search"))
    valid = (f"x={SECRET}", leaked.key, f"API_KEY={SECRET}")
    for query in (
        f"q={leaked.key}",
        f"x-api-key={leaked.key}",
        "token=secret-value",
        *valid,
        "access_token=x",
    ):
        for headers in ({}, ADMIN):
            answer = guarded.get(f"/v1/search?{query}", headers=headers)
            assert answer.status_code == 422
            assert "X-API-Key" in answer.text
            assert leaked.key not in answer.text
            assert SECRET not in answer.text
    for _ in range(20):
        assert guarded.get(f"/tasks/{leaked.key}/{SECRET}?KEY={SECRET}").status_code == 422
    messages = [record.getMessage() for record in caplog.records if not record.name.startswith("httpx")]
    assert not any(leaked.key in line or SECRET in line for line in messages)
    guarded.app.state.authenticator.record_waiting_failures()  # type: ignore[attr-defined]
    entry = audit_entries(action=["key.exposed"])[-1]
    assert (entry.actor_kind, entry.address) == ("anonymous", "testclient")
    assert entry.details == {
        "attempts": 34,
        "paths": ["/v1/search", "/tasks/[key]/[key]"],
        "parameters": ["q", "x-api-key", "token", "x", "query"],  # at most five
        "keys": [leaked.id, "environment"],
    }


def test_key_of_another_identifier_is_not_named(guarded: TestClient) -> None:
    leaked = create_key(KeySpec(name="leaked", scope="search"))
    forged = leaked.key[:-4] + ("AAAA" if not leaked.key.endswith("AAAA") else "BBBB")
    assert guarded.get(f"/videos?api_key={forged}").status_code == 422
    guarded.app.state.authenticator.record_waiting_failures()  # type: ignore[attr-defined]
    entry = audit_entries(action=["key.exposed"])[-1]
    assert entry.details == {"attempts": 1, "paths": ["/videos"], "parameters": ["api_key"], "keys": []}


def test_first_key_closes_a_loopback_service(configured: Settings) -> None:
    client = TestClient(create_app(configured), base_url="http://127.0.0.1:8000", follow_redirects=False)
    assert client.get("/access/current").json()["kind"] == "anonymous"
    key = client.post("/keys", json={"name": "first", "scope": "admin"}).json()
    assert client.get("/tasks").status_code == 401
    assert client.get("/").headers["location"] == "/login"
    client.delete(f"/keys/{key['id']}", headers={"X-API-Key": key["key"]})
    assert client.get("/tasks").status_code == 200


def test_forwarded_address_counts_only_from_trusted_proxies(guarded: TestClient) -> None:
    guarded.get("/tasks", headers={"X-API-Key": "wrong", "X-Forwarded-For": "203.0.113.9"})
    failures = guarded.app.state.authenticator.failures  # type: ignore[attr-defined]
    failures.flush()
    assert audit_entries(action=["key.fail"])[-1].address == "testclient"


def test_network_service_starts_with_an_administrator_of_the_catalog(configured: Settings) -> None:
    network = configured.model_copy(update={"host": "0.0.0.0"})
    create_key(KeySpec(name="reader", scope="search"))
    with pytest.raises(ValueError, match="keys create"):
        create_app(network)
    key = create_key(KeySpec(name="admin", scope="admin")).key
    client = TestClient(create_app(network), base_url="http://search.example.org")
    assert client.get("/keys", headers={"X-API-Key": key}).status_code == 200
    assert client.get("/keys").status_code == 401
