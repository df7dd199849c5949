"""Downloads from a real web server that misbehaves in every way."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from media import MediaError
from media.errors import InconsistentFile, SourceOutage
from media.sources import web_server
from media.sources.downloading import DownloadLimits, SourceCache, download_file
from media.sources.guarded_network import GuardedNetwork
from media.sources.media_source import ByteRange, SourcePrefix, SourceUri, find_prefix
from media.sources.web_server import WebServer
from tests.media.sources.conftest import Download
from tests.web_files import Handler, WebFiles, send


def refused(download: Download, uri: str, match: str, **limits: float) -> None:
    with pytest.raises(MediaError, match=match), download(uri, **limits):
        pytest.fail("the download succeeded")


def unavailable(download: Download, uri: str, match: str, **limits: float) -> None:
    with pytest.raises(SourceOutage, match=match), download(uri, **limits):
        pytest.fail("the download succeeded")


def test_file_exists_until_the_block_ends(
    web_files: WebFiles, download: Download, cache: SourceCache
) -> None:
    web_files.files["/a b.mp4"] = content = b"video" * 10_000
    web_files.handlers["/a%20b.mp4"] = lambda request: send(request, 200, content)
    with download(f"{web_files.url}/a%20b.mp4?token=1") as path:
        assert path.read_bytes() == content
    assert not path.exists()
    assert web_files.requests == ["/a%20b.mp4?token=1"]
    assert list(cache.folder.glob("*.download")) == []


@pytest.mark.parametrize(
    ("status", "match"), [(404, "does not exist"), (410, "exist"), (403, "forbidden"), (302, "target")]
)
def test_missing_and_forbidden_files_are_rejected_at_once(
    status: int, match: str, web_files: WebFiles, download: Download, pauses: list[float]
) -> None:
    web_files.status("/a.mp4", status)
    refused(download, f"{web_files.url}/a.mp4?token=hunter2", match)
    assert len(web_files.requests) == 1
    assert pauses == []


def test_outage_is_repeated_and_named(web_files: WebFiles, download: Download, pauses: list[float]) -> None:
    web_files.files["/a.mp4"] = b"video"
    web_files.status("/a.mp4", 503, 503, 200)
    with download(f"{web_files.url}/a.mp4") as path:
        assert path.read_bytes() == b"video"
    assert pauses == [1.0, 2.0]
    web_files.status("/a.mp4", 503)
    unavailable(download, f"{web_files.url}/a.mp4", "status 503")
    assert len(web_files.requests) == 3 + 4


def test_truncated_body_is_repeated_and_then_rejected(web_files: WebFiles, download: Download) -> None:
    def truncate(request: Handler) -> None:
        send(request, 200, b"half", **{"Content-Length": "8"})
        request.close_connection = True

    web_files.handlers["/a.mp4"] = truncate
    with pytest.raises(InconsistentFile, match="ends after 4 bytes"), download(f"{web_files.url}/a.mp4"):
        pytest.fail("the download succeeded")
    assert len(web_files.requests) == 4


@pytest.mark.parametrize("is_announced", [True, False])
def test_large_and_endless_bodies_end_at_the_limit(
    is_announced: bool, web_files: WebFiles, download: Download, cache: SourceCache
) -> None:
    def send_endless(request: Handler) -> None:
        request.send_response(200)
        if is_announced:
            request.send_header("Content-Length", "99999999")
        request.end_headers()
        request.close_connection = True
        try:
            while True:
                request.wfile.write(b"x" * 65536)
        except OSError:
            ended.set()

    ended = threading.Event()
    web_files.handlers["/a.mp4"] = send_endless
    refused(download, f"{web_files.url}/a.mp4", "larger than 200000 bytes", max_bytes=200_000)
    assert ended.wait(10), "the connection was closed"
    assert sum(path.stat().st_size for path in cache.folder.iterdir()) == 0


@pytest.mark.parametrize("part", [b"X: a\r\n", b"HTTP/1.1 103 Early Hints\r\nX: a\r\n\r\n"])
def test_headers_without_end_are_an_outage(
    part: bytes, web_files: WebFiles, download: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte in time would keep a thread busy forever."""

    def drip(request: Handler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" if part.startswith(b"X") else b"")
        for _ in range(1000):
            request.wfile.write(part)
            time.sleep(0.01)

    monkeypatch.setattr(web_server, "ANSWER_SECONDS", 0.2)
    web_files.handlers["/a.mp4"] = drip
    unavailable(download, f"{web_files.url}/a.mp4", "does not respond in time", attempts=1)


def test_parts_and_compressed_bodies_are_refused(web_files: WebFiles, download: Download) -> None:
    for status, headers, match in (
        (206, {"Content-Range": "bytes 0-4/10"}, "a part of the file"),
        (200, {"Content-Encoding": "gzip"}, "compressed"),
    ):
        web_files.handlers["/a.mp4"] = lambda request, answer=(status, headers): send(
            request, answer[0], b"video", **answer[1]
        )
        refused(download, f"{web_files.url}/a.mp4", match)


def test_redirects_within_the_allowed_sources_are_followed(web_files: WebFiles, download: Download) -> None:
    web_files.files["/files/b.mp4"] = b"video"
    web_files.redirect("/a.mp4", "files/b.mp4", 307)
    with download(f"{web_files.url}/a.mp4") as path:
        assert path.read_bytes() == b"video"


@pytest.mark.parametrize(
    ("location", "match"),
    [
        ("http://169.254.169.254/latest/meta-data/", "in no allowed source"),
        ("http://[::ffff:169.254.169.254]/", "in no allowed source"),
        ("https://example.com/a.mp4", "in no allowed source"),
        ("file:///etc/passwd", "another protocol"),
        ("ftp://example.com/a.mp4", "another protocol"),
        ("//user:hunter2@example.com/a.mp4", "user or a password"),
        ("/files/%2e%2e/b.mp4", "path"),
        ("/files/../b.mp4", "malformed"),
        ("/a.mp4", "more than 5 times"),
        ("http://[", "does not name a host"),
    ],
)
def test_redirects_elsewhere_are_refused(
    location: str, match: str, web_files: WebFiles, download: Download
) -> None:
    web_files.redirect("/a.mp4", location)
    with pytest.raises(MediaError, match=match) as caught, download(f"{web_files.url}/a.mp4"):
        pytest.fail("the download succeeded")
    assert "hunter2" not in str(caught.value)


def test_redirect_to_an_allowed_name_with_a_private_address_is_refused(
    web_files: WebFiles, cache: SourceCache
) -> None:
    web_files.redirect("/a.mp4", f"http://public.example:{web_files.port}/b.mp4")
    web_files.files["/b.mp4"] = b"secret"
    allowed = [
        SourcePrefix.parse(f"private+{web_files.url}/"),
        SourcePrefix.parse(f"http://public.example:{web_files.port}/"),
    ]

    def network(is_private: bool) -> GuardedNetwork:
        return GuardedNetwork(is_private, resolve=lambda host, port: ["127.0.0.1"])

    server = WebServer(partial(find_prefix, allowed=allowed), network)
    uri = SourceUri.parse(f"{web_files.url}/a.mp4")
    limits = DownloadLimits(max_bytes=1000)
    with pytest.raises(MediaError, match="not public"), download_file(server, uri, cache, limits):
        pytest.fail("the download succeeded")
    assert web_files.requests == ["/a.mp4"]


def test_range_of_a_file(web_files: WebFiles) -> None:
    web_files.files["/a.mp4"] = b"0123456789"
    server = WebServer(lambda uri: SourcePrefix.parse(f"private+{web_files.url}"))
    uri = SourceUri.parse(f"{web_files.url}/a.mp4")
    for part, expected in (
        (ByteRange(2, 4), b"234"),
        (ByteRange(7, None), b"789"),
        (ByteRange(None, 3), b"789"),
    ):
        with server.open(uri, part) as stream:
            assert b"".join(stream.chunks) == expected
            assert (stream.total, stream.length, stream.is_partial) == (10, 3, True)
    behind = ByteRange(20, None)
    with pytest.raises(MediaError, match="no bytes in the requested range"), server.open(uri, behind):
        pytest.fail("the range was accepted")


def test_environment_proxies_and_credentials_are_not_used(
    web_files: WebFiles, download: Download, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password hunter2")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    seen: dict[str, str] = {}

    def handle(request: Handler) -> None:
        seen.update(request.headers.items())
        send(request, 200, b"video")

    web_files.handlers["/a.mp4"] = handle
    with download(f"{web_files.url}/a.mp4"):
        assert seen["Host"] == f"127.0.0.1:{web_files.port}"
        assert "Authorization" not in seen


def test_slow_body_ends_at_the_limit(web_files: WebFiles, download: Download) -> None:
    def trickle(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        while not stop.is_set():
            request.wfile.write(b"x")
            request.wfile.flush()
            time.sleep(0.01)

    stop = threading.Event()
    web_files.handlers["/a.mp4"] = trickle
    refused(download, f"{web_files.url}/a.mp4", "takes more than 0 s", seconds=0.1)
    stop.set()
