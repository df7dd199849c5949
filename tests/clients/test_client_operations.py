"""The operations of the client are those of the OpenAPI document, and both clients have all of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, TypeAdapter

from api.app import create_app
from cinestrata_client import AsyncClient, Client
from cinestrata_client.operations import Operations
from cinestrata_client.requests import Operation
from service.core.settings import Settings
from tests.api.conftest import BASE_URL

OPERATIONS = {name: value for name, value in vars(Operations).items() if isinstance(value, Operation)}
# Operations with streams, files or a protocol of their own, and the methods that use them.
OTHERS = {
    "append_to_upload": "upload_file",
    "create_upload": "upload_file",
    "get_upload_offset": "upload_file",
    "upload_capabilities": "upload_file",
    "search_by_clip": "search_by_clip",
    "stream_video": "download_video",
    "download_snapshot": "download_snapshot",
    "watch_task": "watch_task",
}
HEADERS = {"Idempotency-Key": "idempotency_key", "If-Match": "if_match"}
OMITTED = {"X-Request-ID", "Tus-Resumable", "If-None-Match"}


@pytest.fixture(scope="module")
def document(configured: Settings) -> dict[str, Any]:
    """The OpenAPI document, of an application that does not run."""
    content: dict[str, Any] = (
        TestClient(create_app(configured), base_url=BASE_URL).get("/v1/openapi.json").json()
    )
    return content


@pytest.fixture(scope="module")
def documented(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The documented operations by ID, each with its method and path."""
    return {
        operation["operationId"]: {"verb": verb.upper(), "path": path.removeprefix("/v1"), **operation}
        for path, methods in document["paths"].items()
        for verb, operation in methods.items()
    }


def test_both_clients_have_every_documented_operation(documented: dict[str, dict[str, Any]]) -> None:
    assert OPERATIONS.keys() | OTHERS.keys() == documented.keys()
    assert not OPERATIONS.keys() & OTHERS.keys()
    for kind in (Client, AsyncClient):
        assert all(callable(getattr(kind, name)) for name in (*OPERATIONS, *OTHERS.values()))


@pytest.mark.parametrize("name", OPERATIONS)
def test_request_of_an_operation_is_the_documented_one(
    name: str, documented: dict[str, dict[str, Any]]
) -> None:
    operation, expected = OPERATIONS[name], documented[name]
    parameters = dict(list(inspect.signature(getattr(Client, name), eval_str=True).parameters.items())[1:])
    call = operation.call(**dict.fromkeys(parameters, "x"))
    assert (call.method, call.template) == (expected["verb"], expected["path"])

    described = {
        HEADERS.get(each["name"], each["name"]): each
        for each in expected.get("parameters", ())
        if each["name"] not in OMITTED
    }
    assert parameters.keys() - {"body"} == described.keys()
    for parameter, each in described.items():
        place = {"path": call.path, "query": call.query, "header": call.headers}[each["in"]]
        assert (each["name"] if each["in"] == "header" else parameter) in place
        assert (parameters[parameter].default is inspect.Parameter.empty) == each.get("required", False)
        accepted = TypeAdapter(parameters[parameter].annotation).json_schema()
        assert _choices(accepted) == _choices(each["schema"])

    body = expected.get("requestBody")
    assert ("body" in parameters) == (body is not None)
    if body is not None:
        (sent,) = [kind for kind in _members(parameters["body"].annotation) if issubclass(kind, BaseModel)]
        contents = [content["schema"] for kind, content in body["content"].items() if "json" in kind]
        assert sent.__name__ in str(contents)
        assert (parameters["body"].default is inspect.Parameter.empty) == body.get("required", False)


@pytest.mark.parametrize("name", OPERATIONS)
def test_result_of_an_operation_is_the_documented_one(
    name: str, documented: dict[str, dict[str, Any]]
) -> None:
    result = OPERATIONS[name].result
    answer = next(each for status, each in documented[name]["responses"].items() if status[0] == "2")
    contents: Mapping[str, Any] = answer.get("content", {})
    if result is None:
        assert not contents
    elif result in (str, bytes):
        assert "application/json" not in contents
    else:
        schema = contents["application/json"]["schema"]
        model = get_args(result)[0] if get_origin(result) is list else result
        if isinstance(model, type) and issubclass(model, BaseModel):
            reference = {"$ref": f"#/components/schemas/{model.__name__}"}
            entry = schema["items"] if schema.get("type") == "array" else schema
            assert entry == reference
            assert (get_origin(result) is list) == (schema.get("type") == "array")
        else:
            assert schema["additionalProperties"] == {"type": "string"}


def test_both_clients_have_the_same_documented_methods() -> None:
    def public(kind: type) -> dict[str, str | None]:
        return {name: getattr(kind, name).__doc__ for name in dir(kind) if not name.startswith("_")}

    assert public(Client).keys() == public(AsyncClient).keys()
    assert all(public(Client).values())


def _members(hint: Any) -> list[Any]:
    return [each for each in (get_args(hint) or [hint]) if each is not type(None)]


def _choices(schema: Mapping[str, Any]) -> set[str]:
    """Return a parameter's choices: those of its schema, its items or its alternatives."""
    parts = [schema, schema.get("items", {}), *schema.get("anyOf", ())]
    parts += [part.get("items", {}) for part in parts]
    return {choice for part in parts for choice in part.get("enum", ())} - {None}
