"""Rows of the catalog with JSON that no version writes: answers explain the fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from service.catalog.database import session_scope
from tests.catalog_rows import accepted_videos


@contextmanager
def _stored(table: str, column: str, key: str, value: str) -> Iterator[None]:
    """A value in a row, as a broken tool writes it."""
    place = f"{table} SET {column} = :value WHERE id = :key"
    with session_scope(write=True) as session:
        before = session.scalar(text(f"SELECT {column} FROM {table} WHERE id = :key"), {"key": key})
        session.execute(text(f"UPDATE {place}"), {"value": value, "key": key})
    try:
        yield
    finally:
        with session_scope(write=True) as session:
            session.execute(text(f"UPDATE {place}"), {"value": before, "key": key})


@pytest.mark.parametrize("value", ["[1]", "3", '"text"', "{broken"])
@pytest.mark.parametrize("column", ["settings", "progress", "counts"])
def test_task_with_a_damaged_column_is_explained(
    client: TestClient, library: list[str], column: str, value: str
) -> None:
    with _stored("tasks", column, library[0], value):
        for path in ("/tasks", f"/tasks/{library[0]}"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
            assert answer.json()["title"] == "Catalog damaged"
            assert "`cinestrata doctor` names its row" in answer.json()["detail"]
        details = (f"/tasks/{library[0]}/{part}" for part in ("losses", "queries", "rejected"))
        pages = ("/library", "/operations", "/releases", "/shards", "/forgetting", "/metrics")
        for path in (*pages, *details):
            assert client.get(path).status_code != 500, path
    assert client.get("/tasks").status_code == 200


@pytest.mark.parametrize(
    ("column", "value"),
    [("captions", "{}"), ("captions", "[1]"), ("metadata", "[]"), ("metadata", "{broken")],
)
def test_search_with_a_damaged_video_is_explained(
    client: TestClient, library: list[str], column: str, value: str
) -> None:
    video = accepted_videos(library[0])[0]
    with _stored("videos", column, video.id, value):
        answer = client.get(f"/videos/{video.id}")
        assert (answer.status_code, answer.json()["title"]) == (503, "Catalog damaged")
        found = client.get("/search", params={"q": video.captions[0], "k": 50})
        assert found.status_code != 500
    assert client.get(f"/videos/{video.id}").status_code == 200
