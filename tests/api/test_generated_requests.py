"""Requests that a fuzzer generates from the OpenAPI description, and identifiers that no catalog can contain."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from requests.structures import CaseInsensitiveDict
from sqlalchemy import update

from api.app import create_app
from benchmarks.search.synthetic_library import make_library
from cinestrata_schemas.access import KeySpec, UserSpec
from models.backbones.backbone_loading import load_backbone
from service.access.credentials import SessionOwner, create_key, start_session
from service.access.users import create_user
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import Settings
from tests.api.conftest import BASE_URL

if TYPE_CHECKING:  # a slow import, which the collection of other tests does not need
    import schemathesis

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::Warning")]
logging.getLogger("asgi_correlation_id").disabled = True  # a line for each generated request ID

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "15"))
_SETTINGS = settings(
    deadline=None, suppress_health_check=list(HealthCheck), database=None, phases=[Phase.generate]
)
TIMEOUT = 300.0  # seconds; the rendering of samples takes longest


@pytest.fixture(scope="module", autouse=True)
def webhook_target() -> Iterator[str]:
    """A permitted webhook address where nothing listens, set before the settings are read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CINESTRATA_WEBHOOK_TARGETS", "private+http://127.0.0.1:9/")
        yield "http://127.0.0.1:9/hook"


@pytest.fixture(scope="module")
def key(configured: Settings, library: list[str]) -> str:
    """A key for all operations: without one, the first generated key would lock the fuzzer out."""
    return create_key(KeySpec(name="fuzzer", scope="admin")).key


@pytest.fixture(scope="module")
def admin(client: TestClient, key: str) -> Iterator[TestClient]:
    client.headers["X-API-Key"] = key
    yield client
    del client.headers["X-API-Key"]


@pytest.fixture(scope="module")
def identifiers(
    admin: TestClient, configured: Settings, world: Path, webhook_target: str
) -> Mapping[str, Callable[[], list[str | int]]]:
    """Functions that list a parameter's identifiers, after something of each kind was created."""

    def listed(path: str, field: str, *fields: str) -> list[Any]:
        entries = admin.get(path).json()
        for name in fields:
            entries = entries[name]
        return [entry[field] for entry in entries]

    user = create_user(UserSpec(name="fuzzed", password=SecretStr("correct horse"), scope="search"))
    owner = SessionOwner(user_id=user.id)
    create_key(KeySpec(name="fuzzed", scope="search"))
    configured.backups_dir.mkdir(exist_ok=True)
    (configured.backups_dir / "cinestrata-20261101T080000Z-1.tar").write_bytes(b"backup")
    (world / "followed").mkdir()
    hook = admin.post("/webhooks", json={"url": webhook_target}).json()["id"]
    admin.post("/syncs", json={"name": "followed", "source": "followed", "every_seconds": 86_400})
    uploads = [
        admin.post("/uploads", headers={"Tus-Resumable": "1.0.0", "Upload-Length": "3"}).headers["location"]
        for _ in range(4)
    ]
    assert admin.post(f"/webhooks/{hook}/test").is_success
    return {
        "task_id": lambda: listed("/tasks", "id"),
        "video_id": lambda: listed("/videos", "id", "videos"),
        "release_id": lambda: listed("/releases", "id", "releases"),
        "key_id": lambda: [each["id"] for each in admin.get("/keys").json() if each["name"] != "fuzzer"],
        "user_id": lambda: listed("/users", "id"),
        "session_id": lambda: (start_session(owner, "password", "tests"), listed("/sessions", "id"))[1],
        "webhook_id": lambda: listed("/webhooks", "id"),
        "delivery_id": lambda: listed(f"/webhooks/{hook}/deliveries", "id", "deliveries"),
        "sync": lambda: listed("/syncs", "name"),
        "upload_id": lambda: [location.rpartition("/")[2] for location in uploads],
        "name": lambda: listed("/snapshots", "name"),
        "task": lambda: listed("/tasks", "name"),
    }


def test_generated_requests_are_answered_as_documented(
    client: TestClient, key: str, identifiers: Mapping[str, Callable[[], list[str | int]]]
) -> None:
    """The event stream is left out, because it ends only with its task."""
    import schemathesis

    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app, headers={"Host": "127.0.0.1"})
    results: Iterator[Any] = schema.exclude(path_regex="/events$").get_all_operations()
    listed = [result.ok() for result in results]
    run = _Run(key)
    for operation in sorted(listed, key=_destruction):
        strategies = {
            part: values() for part, values in identifiers.items() if f"{{{part}}}" in operation.path
        }
        strategies["task"] = identifiers["task"]()
        _send_generated(run, operation, strategies)
    assert run.failures == []
    # The others need a decodable file, a failed task or a permitted address, which are not generated.
    assert sum(min(statuses) < 400 for statuses in run.statuses.values()) > 50
    assert not any(status in (401, 403, 429) for sent in run.statuses.values() for status in sent)


class _Run:
    """Generated requests, their answers, and the answers that differ from the description.

    Failures are collected, because the same request has another answer in the next state of the library.
    """

    def __init__(self, key: str) -> None:
        from schemathesis.checks import not_a_server_error
        from schemathesis.specs.openapi import checks

        self._checks = [
            not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
            checks.response_headers_conformance,
        ]
        self.statuses: dict[str, Counter[int]] = {}
        self.failures: list[str] = []
        self._key = key

    def authorize(self, case: schemathesis.Case[Any]) -> None:
        """Replace generated credentials."""
        replaced = ("authorization", "cookie", "x-api-key", "host")
        headers = {
            name: value for name, value in (case.headers or {}).items() if name.lower() not in replaced
        }
        case.cookies = {}
        case.headers = CaseInsensitiveDict({**headers, "Host": "127.0.0.1", "X-API-Key": self._key})

    def check(self, case: schemathesis.Case[Any], answer: Any) -> None:
        """Count an answer, and compare it with the description."""
        from schemathesis.core.failures import FailureGroup

        self.statuses.setdefault(f"{case.method} {case.path}", Counter())[answer.status_code] += 1
        try:
            case.validate_response(answer, checks=self._checks)
        except FailureGroup as group:
            self.failures += [f"{case.as_curl_command()}: {each}" for each in group.exceptions]


def _send_generated(run: _Run, operation: Any, strategies: Mapping[str, list[str | int]]) -> None:
    """Send generated requests of an operation, two thirds of them with known identifiers."""

    @settings(_SETTINGS, max_examples=EXAMPLES)
    @given(case=operation.as_strategy(), data=st.data())
    def send(case: schemathesis.Case[Any], data: st.DataObject) -> None:
        for parts in (case.path_parameters, case.query):
            for part in parts.keys() & strategies.keys():
                if strategies[part] and data.draw(st.sampled_from([True, True, False])):
                    parts[part] = data.draw(st.sampled_from(strategies[part]))
        run.authorize(case)
        run.check(case, case.call(timeout=TIMEOUT))

    send()


def _destruction(operation: Any) -> tuple[bool, bool]:
    """Return the order of the operations: those that delete resources which others need come last."""
    return operation.method == "delete", operation.path in ("/v1/tasks/{task_id}", "/v1/users/{user_id}")


RAW_VALUES = (
    "%00",
    "a%00b",
    "%ED%A0%80",  # a lone surrogate in UTF-8
    "%FF",
    "%25%27%22_%5Cud800",
    "x" * 5000,
)
# Values with escapes that are decoded after the query string: JSON, and cursors.
WHERE_VALUES = (
    '{"a": "\\u0000"}',
    '{"a": "\\ud800"}',
    '{"\\u0000": 1}',
    '{"\\ud800": {"any": ["\\u0000", "\\udfff"]}}',
    '{"a": {"all": ["\\u0000"]}}',
)


@pytest.fixture(params=["sqlite", "postgresql"])
def served(
    request: pytest.FixtureRequest, tmp_path: Path, settings_factory: Callable[..., Any]
) -> Iterator[TestClient]:
    """A client of a searchable library, on each database."""
    configured = settings_factory(tmp_path, request.param)
    make_library(configured.data_dir, load_backbone("tiny"), tasks=2, videos=8, queries=8)
    with session_scope(write=True) as session:
        session.execute(update(Task).values(progress={"stage": "ready"}))
    with TestClient(create_app(configured), base_url=BASE_URL, raise_server_exceptions=False) as client:
        client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
        yield client


def test_no_value_of_a_parameter_is_a_server_error(served: TestClient) -> None:
    client = served
    assert client.get("/search", params={"q": "car"}).json()["results"], "the library is searchable"
    task = client.get("/tasks").json()[0]
    video = client.get("/videos").json()["videos"][0]
    strategies = {"task_id": task["id"], "video_id": video["id"], "q": "car"}
    requested = 0
    pages = [f"/{page}/{raw}" for page in ("domains", "watch") for raw in RAW_VALUES]
    for url in [*pages, *_urls(client.get("/openapi.json").json(), strategies)]:
        answer = client.get(url)
        requested += 1
        assert answer.status_code < 500, (url[:200], answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json", url[:200]
    assert requested > 100


def _urls(schema: dict[str, Any], strategies: dict[str, str]) -> Iterator[str]:
    """Yield each GET route with each raw value in each path parameter and each text parameter of the query."""
    for path, methods in schema["paths"].items():
        if "get" not in methods:
            continue
        parameters = methods["get"].get("parameters", [])
        names = re.findall(r"{(\w+)}", path)
        required = {p["name"] for p in parameters if p["in"] == "query" and p.get("required")}
        complete = "&".join(f"{name}={quote(strategies[name])}" for name in sorted(required))
        for name in names:
            for raw in RAW_VALUES:
                values = {other: strategies.get(other, "x") for other in names} | {name: raw}
                yield f"{path.format(**values)}?{complete}"
        valid = path.format(**{name: strategies.get(name, "x") for name in names})
        if valid.endswith("/events"):
            continue  # an endless answer
        for parameter in parameters:
            if parameter["in"] != "query" or '"string"' not in repr(parameter["schema"]).replace("'", '"'):
                continue
            name = parameter["name"]
            rest = "".join(f"&{other}={quote(strategies[other])}" for other in sorted(required - {name}))
            raw_values = [*RAW_VALUES, *map(quote, WHERE_VALUES)] if name == "where" else RAW_VALUES
            for raw in raw_values:
                yield f"{valid}?{name}={raw}{rest}"
