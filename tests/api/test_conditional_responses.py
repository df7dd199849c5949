"""Conditional requests: 304 for the current version of videos, tasks, thumbnails and files, ranges included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient

from api.conditional_responses import range_response
from service.core.settings import Settings

DATE = "Last-Modified"


@pytest.fixture(scope="module")
def task(client: TestClient, configured: Settings) -> Iterator[str]:
    """ID of a queued task with one video ``v``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.tasks.broker.send_probe", lambda task_id: None)
        (configured.media_root / "a.mp4").write_bytes(b"x")
        spec = {"name": "conditions", "videos": [{"id": "v", "uri": "a.mp4", "captions": ["a taxi"]}]}
        yield client.post("/tasks", json=spec).json()["id"]


@pytest.mark.parametrize(
    "path",
    ["/videos/v", "/videos", "/tasks/{task}", "/tasks", "/videos?task={task}", "/releases", "/v1/shards"],
)
def test_current_version_gives_304_without_a_body(client: TestClient, task: str, path: str) -> None:
    path = path.format(task=task)
    full = client.get(path)
    tag = full.headers["etag"]
    for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), f"W/{tag.removeprefix('W/')}", "*"):
        answer = client.get(path, headers={"If-None-Match": known})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    changed = client.get(path, headers={"If-None-Match": '"other"'})
    assert (changed.status_code, changed.json()) == (200, full.json())


def test_edit_changes_the_tag_of_a_video_and_of_its_lists(client: TestClient, task: str) -> None:
    paths = ("/videos/v", "/v1/videos", f"/videos?task={task}")
    before = [client.get(path).headers["etag"] for path in paths]
    edited = client.patch("/videos/v", json={"captions": ["a bus"]}, headers={"If-Match": before[0]})
    assert edited.status_code == 200
    for path, tag in zip(paths, before, strict=True):
        answer = client.get(path, headers={"If-None-Match": tag})
        assert answer.status_code == 200
        assert "a bus" in answer.text
    assert edited.headers["etag"] == client.get("/videos/v").headers["etag"]


@pytest.fixture
def files(tmp_path: Path) -> TestClient:
    """A server with one file of ten bytes."""
    (tmp_path / "clip.mp4").write_bytes(b"0123456789")
    app = FastAPI()

    @app.get("/file")
    def file(request: Request) -> Response:
        return range_response(request, tmp_path / "clip.mp4", "video/mp4", {"Cache-Control": "private"})

    return TestClient(app)


def test_file_is_sent_again_only_after_a_change(files: TestClient) -> None:
    full = files.get("/file")
    for header, value in (("If-None-Match", full.headers["etag"]), ("If-Modified-Since", full.headers[DATE])):
        answer = files.get("/file", headers={header: value})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["cache-control"] == "private"
        assert answer.headers["etag"] == full.headers["etag"]


@pytest.mark.parametrize(
    "date", ["Thu, 01 Jan 1970 00:00:00 GMT", "yesterday", "", "Thu, 99 Xxx 9999 99:99:99 GMT"]
)
def test_older_and_invalid_dates_send_the_file(files: TestClient, date: str) -> None:
    assert files.get("/file", headers={"If-Modified-Since": date}).content == b"0123456789"


def test_entity_tag_takes_precedence_over_the_date(files: TestClient) -> None:
    date = files.get("/file").headers[DATE]
    assert (
        files.get("/file", headers={"If-None-Match": '"old"', "If-Modified-Since": date}).status_code == 200
    )
