"""Sign-in at an OpenID provider, which the tests run as an HTTP server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from joserfc.jwk import OctKey, RSAKey
from pydantic import SecretStr, ValidationError

from api.app import create_app
from api.security.authentication import SESSION_COOKIE
from service.access.credentials import note_change
from service.catalog.database import session_scope
from service.catalog.operation_tables import BrowserSession, User
from service.core.settings import OidcSettings, Settings
from tests.audited_changes import audit_entries
from tests.service.access.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider

BASE = "http://search.example.org"
ADMIN = {"X-API-Key": "s3cret-of-the-environment"}


@pytest.fixture(scope="module")
def running_provider() -> Iterator[IdentityProvider]:
    """The provider, started once."""
    with IdentityProvider() as provider:
        yield provider


@pytest.fixture
def provider(running_provider: IdentityProvider) -> Iterator[IdentityProvider]:
    """The provider, with correct claims."""
    yield running_provider
    running_provider.reset()


@pytest.fixture
def browser(configured: Settings, provider: IdentityProvider) -> Iterator[TestClient]:
    """A browser at an application with the provider."""
    oidc = OidcSettings(
        issuer=provider.url,
        client_id=CLIENT_ID,
        client_secret=SecretStr(CLIENT_SECRET),
        roles="staff=search, editors=ingest, operators=admin",
    )
    changes = {"host": "0.0.0.0", "api_key": SecretStr(ADMIN["X-API-Key"]), "oidc": oidc}
    yield TestClient(create_app(configured.model_copy(update=changes)), base_url=BASE, follow_redirects=False)
    with session_scope(write=True) as session:
        session.query(BrowserSession).delete()
        session.query(User).delete()
    note_change()


def _return_address(browser: TestClient, next: str = "/") -> str:
    """Begin a sign-in, and follow the provider's redirects up to the return address."""
    begun = browser.get("/login/oidc", params={"next": next})
    assert begun.status_code == 303, begun.text
    return httpx.get(begun.headers["location"]).headers["location"]


def _sign_in(browser: TestClient, next: str = "/") -> Any:
    return browser.get(_return_address(browser, next))


def test_user_of_the_provider_signs_in(browser: TestClient, provider: IdentityProvider) -> None:
    assert "/login/oidc?next=%2F" in browser.get("/login").text
    answer = _sign_in(browser, "/watch/v1?q=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/watch/v1?q=a")
    assert browser.get("/access/current").json() == {"kind": "user", "name": "ada", "scope": "search"}
    provider.claims = {"groups": ["staff", "operators"]}
    _sign_in(browser)
    assert browser.get("/access/current").json()["scope"] == "admin"
    (user,) = browser.get("/users", headers=ADMIN).json()
    assert user["provider"] == provider.url


def test_withdrawal_of_the_last_role_ends_all_sessions(
    browser: TestClient, provider: IdentityProvider
) -> None:
    other, colleague = (TestClient(browser.app, base_url=BASE, follow_redirects=False) for _ in range(2))
    assert [_sign_in(each).status_code for each in (browser, other)] == [303, 303]
    provider.claims = {"sub": "subject-2", "preferred_username": "bob"}
    _sign_in(colleague)
    provider.claims = {"groups": ["visitors"]}
    for _ in range(2):
        assert _sign_in(other).status_code == 401
        statuses = [each.get("/access/current").status_code for each in (browser, other, colleague)]
        assert statuses == [401, 401, 200]
    entries = [each for each in audit_entries(action=["session.end"]) if "reason" in each.details]
    assert [each.details for each in entries] == [
        {"user": "ada", "number": 2, "reason": "no role at the provider"}
    ]
    assert len(browser.get("/users", headers=ADMIN).json()) == 2
    provider.reset()
    assert _sign_in(browser).status_code == 303  # the user stays, and has a role again


def test_rotated_keys_are_read_again(browser: TestClient, provider: IdentityProvider) -> None:
    _sign_in(browser)
    provider.rotate_key()
    assert _sign_in(browser).status_code == 303


@pytest.mark.slow
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"aud": "another client"},
        {"aud": [CLIENT_ID, "another client"], "azp": "another client"},
        {"aud": None},
        {"exp": int(time.time()) - 3600},
        {"exp": None},
        {"iat": int(time.time()) + 3600},
        {"nonce": "replayed"},
        {"nonce": None},
        {"sub": None},
        {"groups": ["visitors"]},
        {"groups": None},
        {"groups": {"staff": True}},
    ],
)
def test_id_token_with_a_wrong_claim_is_refused(
    browser: TestClient, provider: IdentityProvider, claims: dict[str, Any]
) -> None:
    provider.claims = claims
    answer = _sign_in(browser)
    assert answer.status_code == 401
    assert SESSION_COOKIE not in answer.headers.get("set-cookie", "")
    provider.reset()
    assert _sign_in(browser).status_code == 303


def test_id_token_of_another_key_is_refused(browser: TestClient, provider: IdentityProvider) -> None:
    provider.signing_key = RSAKey.generate_key(2048, {"kid": str(provider.signing_key.kid)})
    assert _sign_in(browser).status_code == 401
    provider.reset()
    assert _sign_in(browser).status_code == 303


def test_symmetric_signature_is_refused(browser: TestClient, provider: IdentityProvider) -> None:
    """The provider announces HS256, whose signing key is the client secret."""
    provider.signing_key = OctKey.import_key(CLIENT_SECRET.encode(), {"kid": str(provider.signing_key.kid)})
    provider.algorithm = "HS256"
    assert _sign_in(browser).status_code == 401


def test_answer_is_bound_to_the_browser(browser: TestClient, configured: Settings) -> None:
    address = _return_address(browser)
    other = TestClient(browser.app, base_url=BASE, follow_redirects=False)
    assert other.get(address).status_code == 401  # login forgery: the victim's browser has no cookie
    state = parse_qs(urlsplit(address).query)["state"][0]
    assert browser.get(address.replace(state, "x" * len(state))).status_code == 401
    assert browser.get("/login/oidc/callback?error=access_denied&state=" + state).status_code == 401
    assert browser.get(address).status_code == 303
    assert browser.get(address).status_code == 401  # the code and the cookie are used
    for cookie in ("", "x", "a.b.c.d.e", "x" * 9000):
        other.cookies.set("cinestrata_sign_in", cookie, path="/login/oidc")
        assert other.get(address).status_code in (401, 429)


def test_sign_in_without_a_provider(configured: Settings, browser: TestClient) -> None:
    plain = TestClient(create_app(configured), base_url="http://127.0.0.1:8000", follow_redirects=False)
    assert plain.get("/login/oidc").status_code == 404
    assert "/login/oidc" not in plain.get("/login").text
    oidc = OidcSettings(issuer="http://127.0.0.1:9", client_id="x", roles="*=search")
    unreachable = TestClient(
        create_app(configured.model_copy(update={"oidc": oidc})), base_url="http://127.0.0.1"
    )
    answer = unreachable.get("/login/oidc")
    assert answer.status_code == 401
    assert "t respond" in answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"issuer": "http://id.example.com"},
        {"issuer": "http://127.0.0.1.evil.example"},
        {"client_id": ""},
        {"roles": ""},
        {"roles": "staff=root"},
        {"roles": "=admin"},
    ],
)
def test_bad_settings_are_refused(fields: dict[str, str]) -> None:
    good = {"issuer": "https://id.example.com", "client_id": "x", "roles": "a=b=search"}
    assert OidcSettings.model_validate(good).role_scopes == {"a=b": "search"}
    with pytest.raises(ValidationError, match="CINESTRATA_OIDC__"):
        OidcSettings.model_validate(good | fields)
