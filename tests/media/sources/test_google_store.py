"""Objects of Google Cloud Storage: gcsfs against a server that answers as its JSON API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from media import MediaError
from media.sources.media_source import ByteRange, SourceUri
from media.sources.object_store import ObjectStore
from tests.web_files import Handler, WebFiles, send

CONTENT = b"0123456789"
ENTRY = {
    "kind": "storage#object",
    "bucket": "films",
    "name": "videos/a.mp4",
    "size": str(len(CONTENT)),
    "generation": "7",
    "etag": "v7",
    "contentType": "video/mp4",
}


def _answer(request: Handler, status: int, body: Any) -> None:
    send(request, status, json.dumps(body).encode(), **{"Content-Type": "application/json"})


@pytest.fixture
def google(web_files: WebFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebFiles]:
    """A server with one object."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", web_files.url)
    objects = "/storage/v1/b/films/o"
    web_files.handlers["/storage/v1/b/films"] = lambda request: _answer(request, 200, {"name": "films"})
    web_files.handlers[f"{objects}/videos%2Fa.mp4"] = lambda request: _answer(request, 200, ENTRY)
    web_files.handlers[objects] = lambda request: _answer(
        request, 200, {"items": [ENTRY]} if "none" not in request.path else {}
    )
    web_files.files["/download/storage/v1/b/films/o/videos%2Fa.mp4"] = CONTENT
    fsspec.get_filesystem_class("gs").clear_instance_cache()
    yield web_files
    fsspec.get_filesystem_class("gs").clear_instance_cache()


def test_object_is_read_and_listed(google: WebFiles) -> None:
    uri = SourceUri.parse("gs://films/videos/a.mp4")
    with ObjectStore().open(uri) as stream:
        assert b"".join(stream.chunks) == CONTENT
    with ObjectStore().open(uri, ByteRange(2, 4)) as stream:
        assert b"".join(stream.chunks) == b"234"
    (file,) = ObjectStore().list_files(SourceUri.parse("gs://films/videos/"))
    assert (file.name, file.size) == ("a.mp4", 10)
    assert "7" in file.version
    uri = SourceUri.parse("gs://films/videos/none.mp4")
    with pytest.raises(MediaError, match="does not exist in its bucket"), ObjectStore().open(uri):
        pytest.fail("the object was found")


def test_all_pages_of_a_listing_are_read(google: WebFiles) -> None:
    pages = {
        "": {"items": [{**ENTRY, "updated": "2026-01-02T03:04:05.678Z"}], "nextPageToken": "second"},
        "second": {"items": [{**ENTRY, "name": "videos/deep/b.mp4"}, {**ENTRY, "name": "videos/deep/"}]},
    }
    google.handlers["/storage/v1/b/films/o"] = lambda request: _answer(
        request, 200, pages["second" if "pageToken=second" in request.path else ""]
    )
    reports: list[None] = []
    first, second = ObjectStore().list_files(
        SourceUri.parse("gs://films/videos/"), lambda: reports.append(None)
    )
    assert (first.name, second.name, len(reports)) == ("a.mp4", "deep/b.mp4", 2)
    assert first.version == "v7:7:2026-01-02 03:04:05.678000+00:00:2026-01-02T03:04:05.678Z"
