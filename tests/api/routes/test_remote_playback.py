"""Playback of remote videos through the service, from a real web server and a real S3 server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.conditional_responses import VIDEOS
from cinestrata_schemas.tasks import TaskSpec
from service.access.credentials import OPEN_PRINCIPAL
from service.core.settings import Settings, settings
from service.tasks import commands
from tests.web_files import Handler, WebFiles, send

CONTENT = bytes(range(256)) * 100


@pytest.fixture
def client(
    tmp_path: Path, settings_factory: Callable[..., Settings], web_files: WebFiles, s3: Any
) -> Iterator[TestClient]:
    """A service with a video on each remote source."""
    settings_factory(tmp_path, sources=f"private+{web_files.url},s3://films")
    web_files.files["/web.mp4"] = CONTENT
    s3.create_bucket(Bucket="films")
    s3.put_object(Bucket="films", Key="a b?.webm", Body=CONTENT)
    videos = [
        {"id": "web", "uri": f"{web_files.url}/web.mp4?token=hunter2"},
        {"id": "bucket", "uri": "s3://films/a b?.webm"},
        {"id": "page", "uri": f"{web_files.url}/index.html"},
    ]
    commands.create_task(TaskSpec.model_validate({"name": "clips", "videos": videos}))
    with TestClient(
        create_app(settings()), base_url="http://127.0.0.1:8000", raise_server_exceptions=False
    ) as client:
        yield client


@pytest.mark.slow
@pytest.mark.parametrize(("video", "media_type"), [("web", "video/mp4"), ("bucket", "video/webm")])
def test_remote_video_is_forwarded_with_ranges(video: str, media_type: str, client: TestClient) -> None:
    url = f"/videos/{video}/stream"
    whole = client.get(url)
    assert (whole.status_code, whole.content) == (200, CONTENT)
    assert whole.headers["content-type"] == media_type
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-security-policy"].startswith("sandbox")
    for header, expected, span in (
        ("bytes=0-", CONTENT, "bytes 0-25599/25600"),
        ("bytes=100-199", CONTENT[100:200], "bytes 100-199/25600"),
        ("bytes=-50", CONTENT[-50:], "bytes 25550-25599/25600"),
    ):
        part = client.get(url, headers={"Range": header})
        assert (part.status_code, part.content) == (206, expected)
        assert part.headers["content-range"] == span
        assert part.headers["content-length"] == str(len(expected))
    for header in ("bytes=5-2", "bytes=0-1,4-5", "chapters=1"):
        assert client.get(url, headers={"Range": header}).status_code == 200
    outside = client.get(url, headers={"Range": "bytes=25600-"})
    assert (outside.status_code, outside.headers["content-type"]) == (416, "application/problem+json")
    head = client.head(url)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "25600")


def test_open_videos_of_a_caller_are_limited(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VIDEOS, "most_of_caller", 1)
    for _ in range(2):  # a video that was sent, or failed, is closed
        assert client.get("/videos/web/stream").status_code == 200
        assert client.head("/videos/web/stream").status_code == 200
        assert client.get("/videos/page/stream").status_code == 404
    with VIDEOS.opened(OPEN_PRINCIPAL.caller):
        refused = client.get("/videos/web/stream")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
    monkeypatch.setattr(VIDEOS, "most", 1)
    with VIDEOS.opened("key:other"):
        assert client.get("/videos/web/stream").status_code == 429


@pytest.mark.slow
def test_missing_files_and_outages_are_named(client: TestClient, web_files: WebFiles, s3: Any) -> None:
    del web_files.files["/web.mp4"]
    gone = client.get("/videos/web/stream")
    assert gone.status_code == 404
    assert "is searchable" in gone.json()["detail"]
    assert "hunter2" not in gone.text
    web_files.status("/web.mp4", 503)
    outage = client.get("/videos/web/stream")
    assert (outage.status_code, outage.headers["retry-after"]) == (503, "10")
    s3.delete_object(Bucket="films", Key="a b?.webm")
    assert client.get("/videos/bucket/stream").status_code == 404
    s3.delete_bucket(Bucket="films")
    assert client.get("/videos/bucket/stream").status_code == 503


def test_web_page_is_no_video_and_runs_no_script(client: TestClient, web_files: WebFiles) -> None:
    body = b"<script>alert(1)</script>"
    web_files.handlers["/index.html"] = lambda request: send(
        request, 200, body, **{"Content-Type": "text/html", "Set-Cookie": "a=b"}
    )
    answer = client.get("/videos/page/stream")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers


def test_source_that_is_not_allowed_any_more_is_not_read(
    client: TestClient, web_files: WebFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CINESTRATA_SOURCES", "s3://films")
    settings.cache_clear()
    answer = client.get("/videos/web/stream")
    assert answer.status_code == 404
    assert "CINESTRATA_SOURCES" in answer.json()["detail"]
    assert web_files.requests == []


def test_body_that_breaks_off_is_not_complete(client: TestClient, web_files: WebFiles) -> None:
    def truncate(request: Handler) -> None:
        send(request, 200, b"half", **{"Content-Length": "8"})
        request.close_connection = True

    web_files.handlers["/web.mp4"] = truncate
    answer = client.get("/videos/web/stream")
    assert (answer.headers["content-length"], answer.content) == ("8", b"half")
