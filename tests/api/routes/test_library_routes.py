"""Conditional requests and the window of the recall matrix over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient

from service.catalog.database import session_scope
from service.catalog.tables import Task


def test_current_version_is_not_sent_again(client: TestClient, library: list[str]) -> None:
    path = "/forgetting"
    first = client.get(path)
    tag = {"If-None-Match": first.headers["etag"]}
    again = client.get(path, headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get(path, headers={"If-None-Match": f'"other", {tag["If-None-Match"]}'}).status_code == 304
    other = client.get(path, params={"first_domain": 2}, headers=tag)
    assert (other.status_code, other.headers["etag"] != first.headers["etag"]) == (200, True)
    with session_scope(write=True) as session:
        task = session.get_one(Task, library[0])
        task.held_out = "given" if task.held_out == "derived" else "derived"
    changed = client.get(path, headers=tag)
    assert changed.status_code == 200
    assert changed.headers["etag"] != first.headers["etag"]


def test_rows_and_columns_of_the_matrix_are_bounded(client: TestClient, library: list[str]) -> None:
    complete = client.get("/forgetting")
    tag = {"If-None-Match": complete.headers["etag"]}
    shown = client.get("/forgetting", params={"rows": 1, "first_domain": 2, "limit": 1}, headers=tag).json()
    assert (shown["task_ids"], shown["domains"], len(shown["matrix_global"])) == (library[1:], 2, 1)
    assert shown["matrix_global"][0] == complete.json()["matrix_global"][1][1:]
    for parameters in (
        {"rows": 0},
        {"limit": 1001},
        {"first_domain": 0},
        {"first_release": 0},
        {"domain": 1},
    ):
        answer = client.get("/forgetting", params=parameters)
        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == list(parameters)
