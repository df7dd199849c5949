"""Query parameters of searches behave like parameters of a FastAPI signature."""

from __future__ import annotations

from typing import Annotated

import pytest
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from api.search_parameters import ParameterModelRoute, SearchParameters
from api.security.route_scopes import requires

_NAMES = set(SearchParameters.model_fields)


@requires("public")
async def _told(request: Request, parameters: Annotated[SearchParameters, Query()]) -> Response:
    return Response(parameters.model_dump_json(), media_type="application/json")


async def _wrong(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return JSONResponse([[*wrong["loc"], wrong["type"], wrong["msg"]] for wrong in error.errors()], 422)


@pytest.fixture(scope="module")
def client() -> TestClient:
    """Reads the same parameters at ``/at-once`` and, by the framework, at ``/one-by-one``."""
    router = APIRouter(route_class=ParameterModelRoute)
    router.get("/at-once")(_told)
    app = FastAPI()
    app.include_router(router)
    app.get("/one-by-one")(_told)
    app.add_exception_handler(RequestValidationError, _wrong)
    return TestClient(app)


@pytest.mark.parametrize(
    "query",
    [
        "q=a+taxi",
        "q=a+taxi&k=5&task=night&task=kitchen&mode=pinned&min_duration=1&max_duration=2.5&moments=0",
        "q=%C3%A4&arrived_after=2026-01-01&arrived_before=2026-01-02T03:04:05Z&where=%7B%7D&routes=3&cursor=x",
        "q=first&q=last&k=1&k=2",
        "q=&task=&routes=&cursor=&where=",
        "q=x&unknown=1&unknown=2",
        "q=x&min_score=nan&min_confidence=inf",
        "",
        "k=many",
        "q=x&k=&moments=1.5",
        "q=x&k=1e400&min_duration=soon&arrived_after=yesterday&arrived_before=&min_score=x",
    ],
)
def test_values_and_errors_are_those_of_fastapi(client: TestClient, query: str) -> None:
    at_once, one_by_one = (client.get(f"/{way}?{query}") for way in ("at-once", "one-by-one"))
    assert at_once.status_code == one_by_one.status_code
    assert at_once.json() == one_by_one.json()


def test_each_invalid_parameter_is_named(client: TestClient) -> None:
    wrong = client.get("/at-once?k=many&min_score=x").json()
    assert [error[:2] for error in wrong] == [["query", "k"], ["query", "min_score"], ["query", "q"]]


def test_openapi_description_is_that_of_fastapi(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    described = paths["/at-once"]["get"]["parameters"]
    assert described == paths["/one-by-one"]["get"]["parameters"]
    assert {parameter["name"] for parameter in described} == _NAMES
    assert [one["name"] for one in described if one["required"]] == ["q"]
    assert {"value", "range", "tags"} == set(
        next(one for one in described if one["name"] == "where")["examples"]
    )
