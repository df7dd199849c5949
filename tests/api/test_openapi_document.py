"""The OpenAPI document: paths below ``/v1``, security, parameters, error types and webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from service.core.settings import Settings
from tests.api.conftest import BASE_URL


@pytest.fixture(scope="module")
def document(configured: Settings) -> dict[str, Any]:
    """The OpenAPI document, of an application that does not run."""
    content: dict[str, Any] = (
        TestClient(create_app(configured), base_url=BASE_URL).get("/v1/openapi.json").json()
    )
    return content


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _references(part)


def test_versioned_paths_are_documented_with_their_tags(document: dict[str, Any]) -> None:
    assert all(path.startswith("/v1/") for path in document["paths"])
    assert document["servers"] == [{"url": "/", "description": "The service that serves this document."}]
    assert {tag["name"] for tag in document["tags"]} == {
        tag for _, operation in _operations(document) for tag in operation["tags"]
    }


def test_each_operation_has_its_scope_errors_and_an_id(document: dict[str, Any]) -> None:
    assert document["components"]["securitySchemes"].keys() == {"api_key", "bearer", "session"}
    assert document["paths"]["/v1/audit"]["get"]["x-required-scope"] == "admin"
    assert document["paths"]["/v1/search"]["get"]["security"][0] == {"api_key": ["search"]}
    for name, operation in _operations(document):
        is_public = operation["x-required-scope"] == "public"
        assert (operation["security"] == []) is is_public, name
        assert {"422", "4XX", "5XX"} <= operation["responses"].keys(), name
        assert operation["description"].startswith(operation["summary"]), name
    ids = [operation["operationId"] for _, operation in _operations(document)]
    assert len({*ids}) == len(ids)


def test_all_references_resolve(document: dict[str, Any]) -> None:
    for reference in {*_references(document)}:
        node = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
        assert node
