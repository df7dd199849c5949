"""Identifiers, descriptions and references of the OpenAPI document."""

from __future__ import annotations

from fastapi.testclient import TestClient


def test_each_operation_has_an_id_and_a_description(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    operations = [operation for path in paths.values() for operation in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["description"] for operation in operations)
    assert {"/v1/tasks", "/v1/search", "/v1/forgetting", "/v1/videos/{video_id}/stream"} <= set(paths)


def test_all_references_of_the_description_resolve(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for reference in _references(document):
        node = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    errors = document["components"]["responses"]["Problem422"]["content"]
    assert list(errors) == ["application/problem+json"]


def _references(node: object) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    return [found for value in node for found in _references(value)] if isinstance(node, list) else []
