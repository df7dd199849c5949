"""The OpenAPI description, and requests that a fuzzer generates from it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.checks import not_a_server_error

pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@pytest.mark.slow
def test_generated_requests_cause_no_server_error(client: TestClient, library: list[str]) -> None:
    """A dozen generated requests per operation, the event stream left out, which ends only with its task."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app, headers={"Host": "127.0.0.1"})
    tried = 0
    for result in schema.exclude(path_regex="/events$").get_all_operations():
        operation = result.ok()

        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            nonlocal tried
            case.headers = {**(case.headers or {}), "Host": "127.0.0.1"}
            case.call_and_validate(checks=[not_a_server_error])
            tried += 1

        check()
    assert tried >= 12 * 40


@pytest.mark.slow
def test_sequences_of_generated_requests_cause_no_server_error(
    client: TestClient, library: list[str]
) -> None:
    """Requests that use identifiers of earlier responses: created tasks, uploads, syncs and videos."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app, headers={"Host": "127.0.0.1"})
    machine = schema.exclude(path_regex="/events$").as_state_machine()
    sent: Counter[str] = Counter()

    class Requests(machine):  # type: ignore[misc, valid-type]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"headers": {"Host": "127.0.0.1"}}

        def validate_response(self, response: Any, case: schemathesis.Case, **_: Any) -> None:
            sent[f"{case.method} {case.path}"] += 1
            case.validate_response(response, checks=[not_a_server_error])

    run_state_machine_as_test(
        Requests,
        settings=settings(
            max_examples=60,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
    assert sent.total() > 300
    assert len(sent) > 20, sent


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
