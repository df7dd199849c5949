"""The OpenAPI document: examples for each response, error types, headers, security, and only paths below ``/v1``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
from fastapi.testclient import TestClient

from api.openapi_document import problem_classes
from api.schema_examples import complete_example
from cinestrata_schemas.webhooks import WEBHOOK_EVENTS

# Headers of HTTP itself, and those that the security middleware adds to every answer.
COMMON = {"content-length", "content-type", "vary", "content-encoding", "date", "server", "transfer-encoding"}
SECURITY = {
    "cache-control",
    "content-security-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "permissions-policy",
    "referrer-policy",
    "x-content-type-options",
    "x-frame-options",
}


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    """The OpenAPI document."""
    content: dict[str, Any] = client.get("/v1/openapi.json").json()
    return content


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _resolve(document: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        for part in node["$ref"].removeprefix("#/").split("/"):
            document = document[part]
        return document
    return node


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _references(part)


def test_only_versioned_paths_are_documented(document: dict[str, Any]) -> None:
    assert all(path.startswith("/v1/") for path in document["paths"])
    assert document["servers"] == [{"url": "/", "description": "The service that serves this document."}]
    assert {tag["name"] for tag in document["tags"]} == {
        tag for _, _, operation in _operations(document) for tag in operation["tags"]
    }


def test_each_operation_has_security_examples_errors_and_headers(document: dict[str, Any]) -> None:
    for path, method, operation in _operations(document):
        name = f"{method} {path}"
        responses = {status: _resolve(document, r) for status, r in operation["responses"].items()}
        success = [status for status in responses if status[0] == "2"]
        assert success, name
        for parameter in operation["parameters"]:
            assert parameter["description"], (name, parameter["name"])
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            is_bytes = media_type.endswith("octet-stream")
            assert is_bytes or content.get("example") or content.get("examples"), (name, media_type)
        for status, response in responses.items():
            if status[1:] == "XX":
                continue
            assert response["description"] not in ("", "Successful Response"), (name, status)
            assert "X-Request-ID" in response.get("headers", {}), (name, status)
            if status[0] in "23":
                for media_type, content in response.get("content", {}).items():
                    is_binary = media_type.startswith(("image/", "video/", "application/x-tar"))
                    assert "example" in content or is_binary, (name, status, media_type)
            else:
                problem = (
                    response["content"].get("application/problem+json")
                    or response["content"]["application/json"]
                )
                assert problem.get("examples") or problem.get("example"), (name, status)
        is_public = operation["x-required-scope"] == "public"
        assert (operation["security"] == []) is is_public, name
        assert ("401" in responses) is not is_public, name
        assert {"403", "422", "500"} <= set(responses), name
        assert ("404" in responses) is ("{" in path), name


def test_examples_are_valid(document: dict[str, Any]) -> None:
    """Recorded answers and problems fit the schemas of their operations."""
    checked, validators = 0, dict[str, Any]()
    for path, method, operation in _operations(document):
        bodies = {**operation["responses"], "request": operation.get("requestBody", {})}
        for status, given in bodies.items():
            for content in _resolve(document, given).get("content", {}).values():
                examples = [content["example"]] if "example" in content else []
                examples += [example["value"] for example in content.get("examples", {}).values()]
                schema = {**content.get("schema", {}), "components": document["components"]}
                key = json.dumps(content.get("schema", {}))
                validator = validators.get(key) or jsonschema_rs.Draft202012Validator(schema)
                validators[key] = validator
                for example in examples:
                    if isinstance(example, dict | list):
                        errors = [error.message for error in validator.iter_errors(example)]
                        assert errors == [], (method, path, status)
                        checked += 1
    assert checked > 300


def test_each_operation_has_an_id_and_a_description(document: dict[str, Any]) -> None:
    operations = [operation for _, _, operation in _operations(document)]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["description"] for operation in operations)
    assert all(operation["summary"] and not operation["summary"].endswith(".") for operation in operations)


def test_all_references_resolve(document: dict[str, Any]) -> None:
    for reference in _references(document):
        assert _resolve(document, {"$ref": reference})


def test_tags_are_described(document: dict[str, Any]) -> None:
    assert [tag["name"] for tag in document["tags"] if not tag["description"]] == []


def test_choices_and_bounds_of_searches_are_stated(document: dict[str, Any]) -> None:
    parameters = {
        parameter["name"]: parameter["schema"]
        for parameter in document["paths"]["/v1/search"]["get"]["parameters"]
    }
    assert parameters["mode"]["enum"] == ["pinned", "latest", None]
    assert parameters["k"]["minimum"] == 1
    assert (parameters["min_confidence"]["minimum"], parameters["min_confidence"]["maximum"]) == (0, 1)


def test_answers_have_all_fields_in_their_examples(document: dict[str, Any]) -> None:
    answer = document["paths"]["/v1/tasks/{task_id}"]["get"]["responses"]["200"]["content"]
    example = answer["application/json"]["example"]
    assert set(example) == set(document["components"]["schemas"]["TaskDetails"]["properties"])


def test_each_event_is_described_as_a_webhook(document: dict[str, Any]) -> None:
    assert set(document["webhooks"]) == {*WEBHOOK_EVENTS, "webhook.test"}
    for event, methods in document["webhooks"].items():
        operation = methods["post"]
        names = [parameter["name"] for parameter in operation["parameters"]]
        assert names == ["webhook-id", "webhook-timestamp", "webhook-signature"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert schema["properties"]["type"] == {"const": event}
        assert _resolve(document, schema["properties"]["data"])["properties"]


def test_each_problem_type_has_an_example(document: dict[str, Any]) -> None:
    types = {
        example["value"]["type"]
        for response in document["components"]["responses"].values()
        for example in response["content"]["application/problem+json"]["examples"].values()
    }
    classes = [cls for listed in problem_classes().values() for cls in listed]
    assert types == {cls.problem_type() for cls in classes}
    assert len(types) == len(classes) > 20
    assert {"urn:cinestrata:problem:not-found", "urn:cinestrata:problem:too-many-requests"} <= types


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("get", "/v1/tasks", {}),
        ("get", "/v1/tasks", {"headers": {"If-None-Match": "*"}}),
        ("get", "/v1/videos", {}),
        ("get", "/v1/forgetting", {}),
        ("get", "/v1/library", {}),
        ("get", "/v1/syncs", {}),
        ("get", "/v1/releases", {}),
        ("get", "/v1/livez", {}),
        ("get", "/v1/readyz", {}),
        ("get", "/v1/metrics", {}),
        ("get", "/v1/videos/x", {}),
        ("get", "/v1/search", {}),
        ("get", "/v1/search", {"params": {"q": "a taxi"}}),
        ("post", "/v1/tasks", {"json": {}}),
        ("post", "/v1/uploads", {"headers": {"Tus-Resumable": "1.0.0", "Upload-Length": "3"}}),
        ("post", "/v1/uploads", {"headers": {"Upload-Length": "3"}}),
        ("options", "/v1/uploads", {"headers": {"Tus-Resumable": "1.0.0"}}),
    ],
)
def test_headers_and_statuses_of_answers_are_documented(
    client: TestClient, document: dict[str, Any], method: str, path: str, options: dict[str, Any]
) -> None:
    answer: httpx.Response = client.request(method, path, **options)
    template = "/v1/videos/{video_id}" if path == "/v1/videos/x" else path
    documented = document["paths"][template][method]["responses"]
    response = _resolve(document, documented[str(answer.status_code)])
    named = {header.lower() for header in response["headers"]}
    assert {header.lower() for header in answer.headers} - COMMON - SECURITY <= named
    if answer.status_code != 304:
        assert answer.headers.get("content-type", "").partition(";")[0] in {*response.get("content", {}), ""}


@pytest.mark.parametrize(
    ("schema", "recorded", "expected"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {}, {"a": 1}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 5, "gone": 1}, {"a": 5}),
        ({"type": "array", "items": {"$ref": "#/components/schemas/T"}}, [{}], [{"t": "x"}]),
        ({"anyOf": [{"type": "string", "minLength": 6}, {"type": "null"}]}, None, None),
        ({"type": "string", "minLength": 6}, ..., "textxx"),
        ({"type": "integer", "minimum": 5}, ..., 5),
        ({}, ..., {}),
    ],
)
def test_examples_are_completed_from_the_schema(schema: dict[str, Any], recorded: Any, expected: Any) -> None:
    schemas = {"T": {"type": "object", "properties": {"t": {"const": "x"}}, "required": ["t"]}}
    known = () if recorded is ... else (recorded,)
    assert complete_example(schema, schemas, *known) == expected
