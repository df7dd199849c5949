"""Every route × every kind of credentials, built from the routes of the application."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from pydantic import SecretStr
from starlette.routing import Mount

from api.app import create_app
from api.search_parameters import ParameterModelRoute
from api.security.route_scopes import ScopedRoute, check_declarations, declared_scope, requires
from api.tus_protocol import TusRoute
from service.core.settings import Settings

SECRET = "s3cret-of-the-environment"


@pytest.fixture(scope="module")
def guarded(configured: Settings) -> TestClient:
    """The application with an API key, bound to a network address."""
    secured = configured.model_copy(update={"api_key": SecretStr(SECRET), "host": "0.0.0.0"})
    return TestClient(create_app(secured), base_url="http://search.example.org")


@pytest.fixture
def permitting(configured: Settings) -> Iterator[TestClient]:
    """The application with an API key, whose permitted requests end with 204 before their endpoints run."""

    async def end(request: Request) -> Response:
        return Response(status_code=204)

    secured = configured.model_copy(update={"api_key": SecretStr(SECRET), "host": "0.0.0.0"})
    with pytest.MonkeyPatch.context() as patch:
        for route in (ScopedRoute, TusRoute, ParameterModelRoute):
            patch.setattr(route, "permitted_handler", lambda self: end)
        yield TestClient(create_app(secured), base_url="http://search.example.org")


def _routes(client: TestClient) -> list[tuple[str, str, str]]:
    """Method, path and declared scope of every route."""
    found = []
    for context in iter_route_contexts(client.app.routes):  # type: ignore[attr-defined]
        if isinstance(context.original_route, Mount):
            continue
        scope = declared_scope(context.endpoint)
        assert scope is not None, context.path
        for method in sorted(context.methods or ()):
            found.append((method, str(context.path).format_map(_Ids()), scope))
    return found


class _Ids(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "none"


def test_every_route_refuses_requests_without_its_scope(permitting: TestClient) -> None:
    credentials = {"no key": {}, "wrong key": {"X-API-Key": "guess"}, "environment": {"X-API-Key": SECRET}}
    wrong = []
    cells = 0
    for method, path, scope in _routes(permitting):
        for name, headers in credentials.items():
            answer = permitting.request(method, path, headers=headers, follow_redirects=False)
            is_permitted = scope == "public" or name == "environment"
            cells += 1
            if (answer.status_code == 204) != is_permitted or answer.status_code not in (204, 303, 401, 403):
                wrong.append((method, path, name, scope, answer.status_code))
    assert wrong == []
    assert cells > 100


def test_route_without_declaration_is_refused_at_start() -> None:
    def endpoint() -> None:
        """An endpoint."""

    scoped, plain = APIRouter(route_class=ScopedRoute), APIRouter()
    scoped.get("/undeclared")(endpoint)
    plain.get("/unenforced")(requires("search")(endpoint))
    for router, message in ((plain, "unenforced.*route_class"), (scoped, "undeclared.*requires")):
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        app.include_router(router)
        endpoint.__dict__.clear() if router is scoped else None
        with pytest.raises(TypeError, match=message):
            check_declarations(app)


def test_description_states_the_scope_of_each_operation(guarded: TestClient) -> None:
    document = guarded.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"api_key", "bearer", "session"}
    assert document["paths"]["/v1/audit"]["get"]["x-required-scope"] == "admin"
    assert document["paths"]["/v1/search"]["get"]["security"][0] == {"api_key": ["search"]}
    assert document["paths"]["/v1/livez"]["get"]["security"] == []
    assert all("security" in each for path in document["paths"].values() for each in path.values())
