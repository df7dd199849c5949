"""Searches in a learned library over HTTP, its recall matrix and releases, and the quality of domains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cinestrata_schemas.tasks import TaskSpec
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert
from service.catalog.tables import Task
from service.core import request_limits
from service.tasks import commands
from tests.api.learned_library import FIRST, SECOND


def test_search_returns_ranked_results_with_routing_and_timing(
    client: TestClient, library: list[str]
) -> None:
    answer = client.get("/search", params={"q": "something moves left", "k": 5}).json()
    assert [result["rank"] for result in answer["results"]] == [1, 2, 3, 4, 5]
    scores = [result["score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert answer["query"] == "something moves left"
    assert len(answer["release"]) == 64
    assert {entry["task"] for entry in answer["routing"]} == {FIRST, SECOND}
    assert sum(entry["weight"] for entry in answer["routing"]) == pytest.approx(1)
    parts = [answer["timing_ms"][name] for name in ("encode", "route", "search", "merge")]
    assert sum(parts) == pytest.approx(answer["timing_ms"]["total"], rel=0.01)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"q": ""}, "q"),
        ({"q": "x", "k": 10**30}, "k"),
        ({"q": "x", "k": "many"}, "k"),
        ({"q": "x", "mode": "tomorrow"}, "mode"),
        ({}, "q"),
        ({"q": "x", "min_duration": "nan"}, "min_duration"),
        ({"q": "x", "arrived_after": "yesterday"}, "arrived_after"),
        ({"q": "x", "where": "color"}, "where"),
        ({"q": "x", "where": "[1]"}, "where"),
        ({"q": "x", "where": "[" * 20_000}, "where"),
        ({"q": "x", "where": '{"shade": "red"}'}, "where.shade"),
        ({"q": "x", "where": '{"color": "\\ud800", "\\ud800": 1}'}, "where.?"),
    ],
)
def test_invalid_parameter_is_named(
    client: TestClient, library: list[str], parameters: dict[str, object], field: str
) -> None:
    answer = client.get("/search", params=parameters)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_invalid_utf8_query_returns_422(client: TestClient, library: list[str]) -> None:
    for raw in ("q=%ff%fe", "q=%ed%a0%80", "q=x&task=%c0"):
        answer = client.get(f"/search?{raw}")
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == raw.rpartition("=")[0].rpartition("&")[2]
    for raw in ("q=%", "q=%zz&k=%00", "%ff=1&q=x", "&&=&q=x"):
        assert client.get(f"/search?{raw}").status_code < 500


def test_thumbnail_and_stream_of_a_result(client: TestClient, library: list[str]) -> None:
    result = client.get("/search", params={"q": "a taxi", "k": 1}).json()["results"][0]
    video = client.get(f"/videos/{result['video_id']}").json()
    assert (video["task"], video["uri"]) == (result["task"], result["uri"])
    assert video["codec"] == "h264"
    picture = client.get(result["thumbnail_url"])
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content[:2] == b"\xff\xd8"
    whole = client.get(result["stream_url"])
    assert whole.headers["content-type"] == "video/mp4"


@pytest.mark.parametrize(
    ("byte_range", "status", "part"),
    [
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=5-", 206, slice(5, None)),
        ("bytes=-7", 206, slice(-7, None)),
        ("bytes=3-999999999", 206, slice(3, None)),
        ("bytes=99999999-", 416, None),
        ("bytes=-0", 416, None),
        ("bytes=9-3", 200, slice(None)),
        ("bytes=0-1,4-5", 200, slice(None)),
        ("bytes=x-y", 200, slice(None)),
        ("bytes=" + "9" * 6000 + "-", 200, slice(None)),
        ("frames=1-2", 200, slice(None)),
    ],
)
def test_byte_ranges_of_a_stream(
    client: TestClient, library: list[str], byte_range: str, status: int, part: slice | None
) -> None:
    url = client.get("/search", params={"q": "a taxi", "k": 1}).json()["results"][0]["stream_url"]
    whole = client.get(url).content
    answer = client.get(url, headers={"Range": byte_range})
    assert answer.status_code == status
    if part is None:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["content-range"] == f"bytes */{len(whole)}"
    else:
        assert answer.content == whole[part]
        if status == 206:
            first = range(len(whole))[part][0]
            assert (
                answer.headers["content-range"]
                == f"bytes {first}-{first + len(answer.content) - 1}/{len(whole)}"
            )
    head = client.head(url, headers={"Range": byte_range})
    assert (head.status_code, head.content) == (status, b"")


def test_video_missing_on_disk_is_still_found(client: TestClient, library: list[str], world: Path) -> None:
    result = client.get("/search", params={"q": "moves", "k": 1, "task": FIRST}).json()["results"][0]
    path = world / client.get(f"/videos/{result['video_id']}").json()["uri"]
    hidden = path.with_suffix(".away")
    path.rename(hidden)
    try:
        assert client.get(result["stream_url"]).status_code == 404
        assert client.get(result["thumbnail_url"]).status_code == 200
        again = client.get("/search", params={"q": "moves", "k": 1, "task": FIRST}).json()["results"][0]
        assert again["video_id"] == result["video_id"]
    finally:
        hidden.rename(path)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"queries": []}', "queries"),
        ('{"queries": [' + ",".join(['{"q": "x"}'] * 257) + "]}", "queries"),
        ('{"queries": [{"q": "x"}, {"q": ""}]}', "queries[1].q"),
        ('{"queries": [{"q": "x", "k": NaN}]}', "queries[0].k"),
        ('{"queries": [{"q": "x", "k": 1000000}]}', "queries[0].k"),
        ('{"queries": [{"q": "x", "color": "red"}]}', "queries[0].color"),
        ('{"queries": [{"q": "\\ud800"}]}', "queries[0].q"),
        ('{"queries": "x"}', "queries"),
        ("{}", "queries"),
        ('{"queries": [{"q": "x"}', "body"),
    ],
)
def test_invalid_query_of_a_batch_is_named(
    client: TestClient, library: list[str], body: str, field: str
) -> None:
    answer = client.post("/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == [field]


@pytest.mark.parametrize(
    "time", ["2026-01-01T00:00:00+02:00", "2026-01-01T00:00:00.5+0530", "2026-01-01 00:00:00 02:00"]
)
def test_plus_of_a_time_zone_must_be_encoded(client: TestClient, library: list[str], time: str) -> None:
    answer = client.get(f"/search?q=a+taxi&arrived_before={time}")  # a plus is a blank
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["field"]) == (422, "arrived_before")
    assert "%2B" in error["hint"]


@pytest.mark.parametrize("zone", ["%2B02:00", "%2B0530", "Z", "-05:00"])
def test_time_zone_of_a_filter(client: TestClient, library: list[str], zone: str) -> None:
    answer = client.get(f"/search?q=a+taxi&arrived_before=2126-01-01T00:00:00{zone}")
    assert (answer.status_code, answer.json()["query"]) == (200, "a taxi")


def test_full_queue_returns_429_with_retry_after(client: TestClient, library: list[str]) -> None:
    service = client.app.state.query_service  # type: ignore[attr-defined]
    batch = {"queries": [{"q": "a circle"}] * 3}
    with service.admission.admit(request_limits.MAX_WAITING_TEXTS - 2):
        assert client.get("/search", params={"q": "a circle"}).status_code == 200
        for refused in (client.post("/search", json=batch), client.post("/search", json=batch)):
            assert refused.status_code == 429
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) >= 1
            assert "the limit is" in refused.json()["detail"]
    assert client.post("/search", json=batch).status_code == 200, "nothing is left behind"


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


QUERY = {"q": "something moves", "k": 50}


@pytest.fixture
def releases(client: TestClient, library: list[str]) -> Iterator[list[str]]:
    """Release IDs in learning order; the newest is served before and after the test."""
    yield [release["id"] for release in client.get("/releases").json()["releases"]]
    client.post("/releases/newest/serve")
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]


def serve_release(client: TestClient, release: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/releases/{release}/serve", json=body or None)
    assert answer.status_code == 200, answer.text
    client.app.state.query_service.snapshots.refresh()  # type: ignore[attr-defined]
    return dict(answer.json())


def found_tasks(client: TestClient) -> set[str]:
    return {result["task"] for result in client.get("/search", params=QUERY).json()["results"]}


def test_preview_names_the_domains_that_become_unsearchable(
    client: TestClient, library: list[str], releases: list[str]
) -> None:
    preview = serve_release(client, releases[0], dry_run=True)
    videos = client.get(f"/tasks/{library[1]}").json()["counts"]["accepted"]
    change = {"task_id": library[1], "task": SECOND, "videos": videos, "appended": 0}
    assert preview["unsearchable"] == {"domains": 1, "videos": videos, "appended": 0, "first": [change]}
    assert preview["searchable_again"]["domains"] == 0
    assert (preview["before"], preview["newest"], preview["pinned"]) == (releases[1], releases[1], True)
    assert (preview["dry_run"], preview["changed"]) == (True, True)
    assert found_tasks(client) == {FIRST, SECOND}
    assert client.get("/library").json()["pinned"] is None


def test_release_is_found_by_prefix_and_by_domain(
    client: TestClient, library: list[str], releases: list[str]
) -> None:
    for name in (releases[0][:8], FIRST, library[0]):
        assert serve_release(client, name, dry_run=True)["release"] == releases[0]


@pytest.mark.parametrize("name", ["0" * 64, "nothing", "deadbeef", "%00", "%F0%9F%90%9F", "x" * 5000])
def test_unknown_release_is_refused(client: TestClient, releases: list[str], name: str) -> None:
    answer = client.post(f"/releases/{name}/serve", json={"dry_run": True})
    assert answer.status_code == 404
    assert "There is no re" in answer.json()["detail"]


def test_unknown_option_is_refused(client: TestClient, releases: list[str]) -> None:
    answer = client.post(f"/releases/{releases[0]}/serve", json={"dryrun": True})
    assert answer.status_code == 422
    assert client.get("/library").json()["pinned"] is None


def test_alerts_are_those_of_the_served_release_at_once(client: TestClient, releases: list[str]) -> None:
    with session_scope(write=True) as session:
        session.add(
            Alert(
                kind="forgetting_global", open_key="forgetting_global:t", value=0.5, threshold=0.15,
                raised_at=now(session),
            )
        )  # fmt: skip
    serve_release(client, releases[0], dry_run=True)
    assert client.get("/library").json()["open_alerts"] == 1
    serve_release(client, releases[0])  # the first release cannot have lost an earlier domain
    assert client.get("/library").json()["open_alerts"] == 0


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/tasks/nowhere/queries", 404, None),
        ("/videos/nothing/explanation?q=x", 404, None),
        ("/tasks/{task}/queries?worst=1000", 422, "worst"),
        ("/tasks/{task}/queries?best=1", 422, "best"),
        ("/videos/nothing/explanation", 422, "q"),
        ("/videos/nothing/explanation?q=x&k=0", 422, "k"),
        ("/videos/nothing/explanation?q=x&cursor=y", 422, "cursor"),
    ],
)
def test_invalid_request_is_named(
    client: TestClient, library: list[str], path: str, status: int, field: str | None
) -> None:
    answer = client.get(path.format(task=library[0]))
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    if field:
        assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_waiting_task_has_no_report(client: TestClient, library: list[str], world: Path) -> None:
    videos = [{"uri": f"{FIRST}/{next((world / FIRST).glob('*.mp4')).name}"}]
    task = commands.create_task(TaskSpec.model_validate({"name": "later", "videos": videos})).task
    answer = client.get(f"/tasks/{task.id}/queries")
    assert (answer.status_code, "queued" in answer.json()["detail"]) == (409, True)


@pytest.mark.parametrize("path", ["/domains", "/watch"])
def test_ids_in_addresses_are_text(client: TestClient, path: str) -> None:
    answer = client.get(f'{path}/"><img src=x onerror=alert(1)>')
    assert answer.status_code == 200
    assert "<img" not in answer.text
    assert "&lt;img" in answer.text
