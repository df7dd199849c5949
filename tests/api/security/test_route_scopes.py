"""Every route × every kind of credentials, also while the catalog database cannot be reached."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from limits import RateLimitItemPerMinute
from pydantic import SecretStr
from starlette.routing import Mount

from api.app import create_app
from api.routes.upload_routes import TusRoute
from api.security import authentication
from api.security.authentication import SESSION_COOKIE
from api.security.route_scopes import ScopedRoute, check_declarations, declared_scope, requires
from cinestrata_schemas.access import KeySpec, UserSpec
from service.access.credentials import (
    SCOPES,
    SessionOwner,
    create_key,
    note_change,
    revoke_key,
    start_session,
)
from service.access.users import create_user
from service.catalog.database import session_scope
from service.catalog.operation_tables import ApiKey
from service.core.settings import Settings
from tests.api.conftest import SECRET, create_guarded_app


@pytest.fixture
def permitting(configured: Settings) -> Iterator[FastAPI]:
    """The application with an API key, whose permitted requests end with 204 before their endpoints run."""

    async def end(request: Request) -> Response:
        return Response(status_code=204)

    secured = configured.model_copy(update={"api_key": SecretStr(SECRET), "host": "0.0.0.0"})
    with pytest.MonkeyPatch.context() as patch:
        for route in (ScopedRoute, TusRoute):
            patch.setattr(route, "permitted_handler", lambda self: end)
        yield create_app(secured)


def _routes(app: FastAPI) -> list[tuple[str, str, str]]:
    """Return the method, path and declared scope of every route."""
    scopes = []
    for context in iter_route_contexts(app.routes):
        if isinstance(context.original_route, Mount):
            continue
        scope = declared_scope(context.endpoint)
        assert scope is not None, context.path
        for method in sorted(context.methods or ()):
            scopes.append((method, str(context.path).format_map(_Ids()), scope))
    return scopes


class _Ids(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "none"


@pytest.fixture(scope="module")
def credentials(configured: Settings) -> dict[str, tuple[str | None, dict[str, str]]]:
    """Name → granted scope and headers; scope None is refused everywhere."""
    granted: dict[str, tuple[str | None, dict[str, str]]] = {
        "no key": (None, {}),
        "wrong key": (None, {"X-API-Key": "guess"}),
        "unknown key": (None, {"X-API-Key": f"cine_{'0' * 12}_{'A' * 43}"}),
        "environment": ("admin", {"Authorization": f"Bearer {SECRET}"}),
    }
    for scope in SCOPES:
        granted[scope] = (scope, {"X-API-Key": create_key(KeySpec(name=f"matrix {scope}", scope=scope)).key})
    revoked = create_key(KeySpec(name="matrix revoked", scope="admin"))
    revoke_key(revoked.id)
    granted["revoked"] = (None, {"X-API-Key": revoked.key})
    expired = create_key(KeySpec(name="matrix expired", scope="admin"))
    with session_scope(write=True) as session:
        session.get_one(ApiKey, expired.id).expires_at = datetime(2026, 1, 1, tzinfo=UTC)
    granted["expired"] = (None, {"X-API-Key": expired.key})
    user = create_user(UserSpec(name="matrix user", password=SecretStr("correct horse"), scope="ingest"))
    token = start_session(SessionOwner(user_id=user.id), "password", "tests")
    granted["session"] = ("ingest", {"Cookie": f"{SESSION_COOKIE}={token}"})
    return granted


def test_every_route_refuses_requests_without_its_scope(
    permitting: FastAPI,
    credentials: dict[str, tuple[str | None, dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("httpx"), "disabled", True)  # a line for each request
    monkeypatch.setattr(authentication.failed_attempts, "KEY_LIMIT", RateLimitItemPerMinute(10**6))
    asyncio.run(_check_matrix(permitting, credentials))


async def _check_matrix(app: FastAPI, credentials: dict[str, tuple[str | None, dict[str, str]]]) -> None:
    routes = _routes(app)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://search.example.org")
    wrong = []
    cells = 0
    for method, path, scope in routes:
        for name, (granted, headers) in credentials.items():
            answer = await client.request(method, path, headers=headers)
            is_permitted = scope == "public" or (granted and SCOPES.index(granted) >= SCOPES.index(scope))
            refusals = {403} if granted else {303, 401}
            cells += 1
            if answer.status_code not in ({204} if is_permitted else refusals):
                wrong.append((method, path, name, scope, answer.status_code))
    assert wrong == []
    assert cells == len(routes) * len(credentials) > 500


def test_route_without_declaration_is_refused_at_start() -> None:
    def endpoint() -> None:
        """Return an endpoint."""

    scoped, plain = APIRouter(route_class=ScopedRoute), APIRouter()
    scoped.get("/undeclared")(endpoint)
    plain.get("/unenforced")(requires("search")(endpoint))
    for router, message in ((plain, "unenforced.*route_class"), (scoped, "undeclared.*requires")):
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        app.include_router(router)
        endpoint.__dict__.clear() if router is scoped else None
        with pytest.raises(TypeError, match=message):
            check_declarations(app)


SEARCHABLE = "The model is still being loaded"  # of a search that passed the check of its credentials


@pytest.fixture
def guarded_app(configured: Settings) -> FastAPI:
    """An application of each test, which remembers no outage."""
    return create_guarded_app(configured)


@pytest.fixture
def outage_client(guarded: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client whose credentials are looked up again for each request."""
    monkeypatch.setattr(authentication, "_FRESH_SECONDS", -1.0)
    return guarded


def _search(outage_client: TestClient, key: str, path: str = "/v1/search") -> tuple[int, str]:
    answer = outage_client.get(path, params={"q": "a bird"}, headers={"X-API-Key": key})
    return answer.status_code, answer.json()["detail"]


def _key(scope: Any = "search", days: int | None = None) -> str:
    return create_key(KeySpec(name=uuid.uuid4().hex, scope=scope, expires_in_days=days)).key


def test_known_keys_search_and_unknown_keys_do_not(
    outage_client: TestClient, lose_database: Callable[[], None]
) -> None:
    used, unused = _key(), _key("admin")
    outage_client.get("/tasks", headers={"X-API-Key": used})
    lose_database()
    for path in ("/search", "/v1/search"):
        assert SEARCHABLE in _search(outage_client, SECRET, path)[1]
        assert SEARCHABLE in _search(outage_client, used, path)[1]
    for key in (unused, unused[:-1] + "_", "cine_000000000000_" + "A" * 43):
        status, detail = _search(outage_client, key)
        assert status == 503
        assert "catalog" in detail
    assert _search(outage_client, "")[0] == 401


def test_remembered_key_permits_searches_only(
    outage_client: TestClient, lose_database: Callable[[], None]
) -> None:
    key = _key("admin")
    assert outage_client.get("/keys", headers={"X-API-Key": key}).status_code == 200
    lose_database()
    assert SEARCHABLE in _search(outage_client, key)[1]
    answer = outage_client.post("/tasks/none/cancel", headers={"X-API-Key": key})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("end", ["revoked", "expired", "forgotten"])
def test_memory_of_a_key_ends(
    outage_client: TestClient, lose_database: Callable[[], None], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    key = _key(days=1)
    outage_client.get("/tasks", headers={"X-API-Key": key})
    lose_database()
    assert SEARCHABLE in _search(outage_client, key)[1]
    if end == "revoked":
        note_change()
    elif end == "expired":

        class Tomorrow(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(UTC) + timedelta(days=2)

        monkeypatch.setattr(authentication, "datetime", Tomorrow)
    else:
        monkeypatch.setattr(authentication, "REMEMBERED_SECONDS", 0.0)
    assert _search(outage_client, key)[0] == 503
    assert "catalog" in _search(outage_client, key)[1]
