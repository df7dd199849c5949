"""Streams state the type of the content and the name of the file."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from fastapi.testclient import TestClient

from cinestrata_schemas.tasks import TaskSpec
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core.settings import Settings
from service.tasks import commands

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
