"""Conditional requests: 304 for the current version of videos, tasks, thumbnails and files; headers of streams."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient

from api.conditional_responses import range_response
from cinestrata_schemas.tasks import TaskSpec
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.settings import Settings
from service.tasks import commands

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


CONTENT = bytes(range(256))


@pytest.fixture
def add_video(configured: Settings) -> Callable[..., str]:
    """Returns a function that adds a file of the media root with these streams."""

    def add(uri: str, name: str, container: str | None, codec: str | None) -> str:
        path = configured.media_root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
        commands.create_task(TaskSpec.model_validate({"name": uuid.uuid4().hex, "videos": [{"uri": uri}]}))
        with session_scope(write=True) as session:
            video = session.query(Video).order_by(Video.vector_id.desc()).limit(1).one()
            video.container, video.codec = container, codec
            return video.id

    return add


@pytest.mark.parametrize(
    "name",
    [
        "plain.mp4",
        "夜の街 1.mp4",
        'a"b;c.mp4',
        "été 100%.mov",
        "🎂.mp4",
        "line\nbreak.mp4",
        "What? #1 100%.mp4",
    ],
)
@pytest.mark.parametrize("spelling", ["path", "file URI"])
def test_name_of_a_file_is_kept_when_it_is_saved(
    client: TestClient, configured: Settings, add_video: Callable[..., str], name: str, spelling: str
) -> None:
    path = configured.media_root / "folder" / name
    video = add_video(
        f"folder/{name}" if spelling == "path" and name.isprintable() else path.as_uri(),
        f"folder/{name}",
        "mov",
        "h264",
    )
    answer = client.get(f"/videos/{video}/stream")
    assert (answer.status_code, answer.content) == (200, CONTENT)
    disposition = answer.headers.get_list("content-disposition")
    assert len(disposition) == 1
    start, _, written = disposition[0].partition("''")
    assert start == "inline; filename*=UTF-8"
    assert unquote(written) == name
    assert written.isascii()
    assert not set(written) & set('";\n /')


@pytest.mark.parametrize(
    ("name", "container", "codec", "expected"),
    [
        ("a.mov", "mov", "h264", "video/mp4"),
        ("c.ts", "mpegts", "h264", "video/mp2t"),
        ("d.html", None, None, "application/octet-stream"),
    ],
)
def test_ranges_and_head_have_the_type_of_the_whole_file(
    client: TestClient,
    add_video: Callable[..., str],
    name: str,
    container: str | None,
    codec: str | None,
    expected: str,
) -> None:
    url = f"/videos/{add_video(name, name, container, codec)}/stream"
    whole, head, part = client.get(url), client.head(url), client.get(url, headers={"Range": "bytes=0-1"})
    for answer in (whole, head, part):
        assert answer.headers["content-type"] == expected
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["accept-ranges"] == "bytes"
    assert (part.status_code, part.content, part.headers["content-length"]) == (206, CONTENT[:2], "2")
    assert part.headers["content-range"] == "bytes 0-1/256"
