"""Identifiers and texts that no catalog can contain, on both databases: no GET route answers with a server error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from api.app import create_app
from benchmarks.search.synthetic_library import make_library
from models.backbones.backbone_loading import load_backbone
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.settings import settings
from tests.api.conftest import BASE_URL

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
    make_library(settings().data_dir, load_backbone("tiny"), tasks=2, videos=8, queries=8)
    with session_scope(write=True) as session:
        session.execute(update(Task).values(progress={"stage": "ready"}))
    with TestClient(create_app(configured), base_url=BASE_URL, raise_server_exceptions=False) as client:
        client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
        yield client


@pytest.mark.slow
def test_no_value_of_a_parameter_is_a_server_error(served: TestClient) -> None:
    client = served
    assert client.get("/search", params={"q": "car"}).json()["results"], "the library is searchable"
    task = client.get("/tasks").json()[0]
    video = client.get("/videos").json()["videos"][0]
    known = {"task_id": task["id"], "video_id": video["id"], "q": "car"}
    requested = 0
    pages = [f"/{page}/{raw}" for page in ("domains", "watch") for raw in RAW_VALUES]
    for url in [*pages, *_urls(client.get("/openapi.json").json(), known)]:
        answer = client.get(url)
        requested += 1
        assert answer.status_code < 500, (url[:200], answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json", url[:200]
    assert requested > 100


def _urls(schema: dict[str, Any], known: dict[str, str]) -> Iterator[str]:
    """Yield each GET route with each raw value in each path parameter and each text parameter of the query."""
    for path, methods in schema["paths"].items():
        if "get" not in methods:
            continue
        parameters = methods["get"].get("parameters", [])
        names = re.findall(r"{(\w+)}", path)
        required = {p["name"] for p in parameters if p["in"] == "query" and p.get("required")}
        complete = "&".join(f"{name}={quote(known[name])}" for name in sorted(required))
        for name in names:
            for raw in RAW_VALUES:
                values = {other: known.get(other, "x") for other in names} | {name: raw}
                yield f"{path.format(**values)}?{complete}"
        valid = path.format(**{name: known.get(name, "x") for name in names})
        if valid.endswith("/events"):
            continue  # an endless answer
        for parameter in parameters:
            if parameter["in"] != "query" or '"string"' not in repr(parameter["schema"]).replace("'", '"'):
                continue
            name = parameter["name"]
            rest = "".join(f"&{other}={quote(known[other])}" for other in sorted(required - {name}))
            raw_values = [*RAW_VALUES, *map(quote, WHERE_VALUES)] if name == "where" else RAW_VALUES
            for raw in raw_values:
                yield f"{valid}?{name}={raw}{rest}"
