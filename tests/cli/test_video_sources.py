"""Folders that are too large to upload to a real service: refused with the sum, the limit and a way out."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import Result

from api.app import create_app
from cli.commands import video_sources
from service.core.settings import Settings
from tests.api.browser import serve
from tests.cli.invocation import run

LIMIT = 1_000_000
WAYS_OUT = ("--in-place", "in parts", "--into")


@pytest.fixture
def service(tmp_path: Path, settings_factory: Callable[..., Settings]) -> Iterator[str]:
    """URL of a service that accepts archives of a megabyte."""
    configured = settings_factory(tmp_path, max_upload_bytes=LIMIT)
    with serve(create_app(configured)) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for videos. Temporary files are in ``tmp`` beside it."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "big"


def fill(folder: Path, *sizes: int) -> Path:
    folder.mkdir()
    for number, size in enumerate(sizes):
        (folder / f"{number}.mp4").write_bytes(os.urandom(size))
    return folder


def require_refusal(outcome: Result, *parts: str) -> None:
    assert outcome.exit_code == 1
    assert isinstance(outcome.exception, SystemExit)
    for part in (*parts, *WAYS_OUT):
        assert part in outcome.output


def refuse_packing(*_: object) -> None:
    raise AssertionError("nothing may be packed")


def test_folder_above_the_limit_is_refused_before_it_is_packed(
    service: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_sources, "pack_videos", refuse_packing)
    outcome = run("ingest", fill(folder, 3_000_000, 200_000), "--url", service)
    require_refusal(outcome, "3.2 MB", "1.0 MB", "CINESTRATA_MAX_UPLOAD_BYTES")


def test_archive_above_the_limit_is_refused_before_it_is_sent(service: str, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(bytes(2 * LIMIT))
    require_refusal(run("ingest", tmp_path / "a.zip", "--url", service), "2.0 MB", "1.0 MB")


@pytest.mark.parametrize("is_quota", [False, True])
def test_folder_above_the_free_space_is_refused_before_it_is_packed(
    service: str, folder: Path, monkeypatch: pytest.MonkeyPatch, is_quota: bool
) -> None:
    monkeypatch.setattr(video_sources, "pack_videos", refuse_packing)
    if is_quota:  # of ulimit -f
        monkeypatch.setattr(resource, "getrlimit", lambda _: (400_000, 400_000))
    else:
        monkeypatch.setattr(video_sources.shutil, "disk_usage", lambda _: SimpleNamespace(free=400_000))
    outcome = run("ingest", fill(folder, 450_000, 450_000), "--url", service)
    require_refusal(outcome, "900.0 kB", "400.0 kB", str(folder.parent / "tmp"))


@contextmanager
def proxy_with_limit(service: str, answer: bytes) -> Iterator[str]:
    """Forward GET requests, and answer others as soon as their head has arrived, as proxies with a limit do."""
    target = service.removeprefix("http://").partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def handle(connection: socket.socket) -> None:
            with connection:
                head = b""
                while b"\r\n\r\n" not in head and (part := connection.recv(65_536)):
                    head += part
                if not head.startswith(b"GET"):
                    connection.sendall(answer)
                    return
                with socket.create_connection((target[0], int(target[2]))) as inner:
                    inner.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                    while part := inner.recv(65_536):
                        connection.sendall(part)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


PAGE = b"<html><h1>413 Request Entity Too Large</h1></html>"
TOO_LARGE = (
    b"HTTP/1.1 413 Too Large\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
)


@pytest.mark.parametrize("answer", [TOO_LARGE % (len(PAGE), PAGE), b""], ids=["413", "closed"])
def test_limit_of_a_proxy_is_explained(service: str, folder: Path, answer: bytes) -> None:
    with proxy_with_limit(service, answer) as proxy:
        outcome = run("ingest", fill(folder, 900_000), "--url", proxy)
    # A proxy that closes the connection at once may lose its answer.
    require_refusal(outcome, "kB to upload")
    assert "proxy" in outcome.output or "connection ended during the upload" in outcome.output
    assert "<html>" not in outcome.output
