"""Resumable uploads over HTTP: the tus protocol, its refusals, and tasks from uploads."""

from __future__ import annotations

import base64
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tusclient.client import TusClient

from api.app import create_app
from service.core import request_limits
from service.core.errors import NotFound
from service.core.settings import Settings
from service.tasks import upload_store
from tests.api.browser import serve
from tests.api.learned_library import FIRST

BASE_URL = "http://127.0.0.1:8000"
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {**TUS, "Content-Type": "application/offset+octet-stream"}


def _metadata(name: str) -> str:
    return f"filename {base64.b64encode(name.encode()).decode()}"


def _create(client: TestClient, size: int, name: str = "clip.mp4", **headers: str) -> Any:
    return client.post(
        "/uploads", headers={**TUS, "Upload-Length": str(size), "Upload-Metadata": _metadata(name), **headers}
    )


def _append(client: TestClient, address: str, offset: int, data: bytes, **headers: str) -> Any:
    return client.patch(address, content=data, headers={**BYTES, "Upload-Offset": str(offset), **headers})


def _offset(client: TestClient, address: str) -> int:
    answer = client.head(address, headers=TUS)
    assert answer.status_code == 200
    return int(answer.headers["upload-offset"])


def _upload(client: TestClient, data: bytes, name: str) -> str:
    """Return the ID of a complete upload."""
    address = _create(client, len(data), name).headers["location"]
    assert _append(client, address, 0, data).status_code == 204
    return str(address.removeprefix("/uploads/"))


@pytest.fixture
def video(world: Path) -> bytes:
    """Bytes of a video that can be decoded."""
    return next((world / FIRST).glob("*.mp4")).read_bytes()


def test_capabilities_state_version_extensions_and_limit(client: TestClient) -> None:
    answer = client.options("/uploads")
    assert answer.status_code == 204
    assert answer.headers["tus-version"] == "1.0.0"
    assert {"creation", "termination", "expiration"} <= {*answer.headers["tus-extension"].split(",")}
    assert answer.headers["tus-max-size"] == str(request_limits.MAX_VIDEO_BYTES)


def test_upload_in_parts_and_its_headers(client: TestClient, configured: Settings) -> None:
    created = _create(client, 10, "Küche/clip.mp4")
    assert created.status_code == 201
    address = created.headers["location"]
    assert _append(client, address, 0, b"01234").headers["upload-offset"] == "5"
    head = client.head(address, headers=TUS)
    assert head.headers["upload-offset"] == "5"
    assert head.headers["upload-length"] == "10"
    assert head.headers["upload-metadata"] == _metadata("Küche/clip.mp4")
    assert head.headers["cache-control"] == "no-store"
    assert head.headers["upload-expires"].endswith("GMT")
    assert _append(client, address, 5, b"56789").headers["upload-offset"] == "10"
    stored = upload_store.find_upload(address.removeprefix("/uploads/"))
    assert stored.path.read_bytes() == b"0123456789"
    assert stored.path.is_relative_to(configured.uploads_dir)
    assert client.delete(address, headers=TUS).status_code == 204
    assert client.head(address, headers=TUS).status_code == 404
    assert not stored.path.exists()


def test_upload_survives_a_restart_of_the_server(client: TestClient, configured: Settings) -> None:
    address = _create(client, 6).headers["location"]
    _append(client, address, 0, b"abc")
    restarted = TestClient(create_app(configured), base_url=BASE_URL)
    assert _offset(restarted, address) == 3
    assert _append(restarted, address, 3, b"def").status_code == 204
    assert _offset(client, address) == 6


def test_creation_with_bytes(client: TestClient) -> None:
    answer = client.post("/uploads", content=b"abc", headers={**BYTES, "Upload-Length": "6"})
    assert (answer.status_code, answer.headers["upload-offset"]) == (201, "3")
    assert _offset(client, answer.headers["location"]) == 3


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Upload-Length": "5"}, 412),
        ({"Tus-Resumable": "0.2.2", "Upload-Length": "5"}, 412),
        ({**TUS}, 400),
        ({**TUS, "Upload-Length": "-1"}, 400),
        ({**TUS, "Upload-Length": "9" * 40}, 400),
        ({**TUS, "Upload-Length": "5", "Upload-Metadata": "filename ***"}, 400),
        ({**TUS, "Upload-Length": "5", "Upload-Metadata": "filename /w=="}, 400),  # not UTF-8
        ({**TUS, "Upload-Length": str(request_limits.MAX_VIDEO_BYTES + 1)}, 413),
        ({**TUS, "Upload-Length": "5", "Content-Type": "text/plain"}, 415),
    ],
)
def test_invalid_creation_is_refused(client: TestClient, headers: dict[str, str], status: int) -> None:
    answer = client.post("/uploads", headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["tus-resumable"] == "1.0.0"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


def test_long_metadata_is_named(client: TestClient) -> None:
    metadata = f"filename {'A' * 20_000}"
    answer = client.post("/uploads", headers={**TUS, "Upload-Length": "5", "Upload-Metadata": metadata})
    assert answer.json()["detail"] == "Upload-Metadata: Send at most 16384 characters."


def test_folder_that_cannot_be_written_has_a_hint(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_store, "settings", lambda: Settings(data_dir=Path("/dev/null")))
    answer = _create(client, 1)
    assert (answer.status_code, "user write access" in answer.json()["detail"]) == (503, True)


def test_wrong_offset_is_refused_with_the_stored_one(client: TestClient) -> None:
    address = _create(client, 10).headers["location"]
    _append(client, address, 0, b"abc")
    for offset in (0, 2, 4, 10):
        answer = _append(client, address, offset, b"x")
        assert (answer.status_code, answer.headers["upload-offset"]) == (409, "3")
    assert _append(client, address, 3, b"x", **{"Content-Type": "video/mp4"}).status_code == 415
    assert client.patch(address, content=b"x", headers=BYTES).status_code == 400
    assert _offset(client, address) == 3


def test_unknown_ids_are_not_found(client: TestClient) -> None:
    for name in ("upl_0", "..%2f..%2fcatalog.sqlite3", "preview", f"upl_{'0' * 32}"):
        assert client.head(f"/uploads/{name}", headers=TUS).status_code == 404
        assert _append(client, f"/uploads/{name}", 0, b"x").status_code == 404
        assert client.delete(f"/uploads/{name}", headers=TUS).status_code == 404


def test_task_from_uploads_is_created_once(client: TestClient, configured: Settings, video: bytes) -> None:
    upload = _upload(client, video, "../<img onerror=alert(1)>/clip.mp4")
    body = {"name": "sent in parts", "videos": [{"uri": f"upload://{upload}", "captions": ["a clip"]}]}
    keyed = {"Idempotency-Key": "parts"}
    answer = client.post("/tasks", json=body, headers=keyed)
    assert answer.status_code == 202, answer.text
    task = answer.json()
    again = client.post("/tasks", json=body, headers=keyed)
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (task["id"], "true")
    stored = client.get(f"/videos?task={task['id']}").json()["videos"][0]["uri"]
    assert stored == f"upload://{task['id']}/<img onerror=alert(1)>/clip.mp4"
    file = configured.uploads_dir / stored.removeprefix("upload://")
    assert file.read_bytes() == video
    assert client.head(f"/uploads/{upload}", headers=TUS).status_code == 404
    other = client.post("/tasks", json={**body, "name": "again"})
    assert other.status_code == 422
    assert other.json()["errors"][0]["field"] == "videos[0].uri"


def test_upload_is_deleted_unless_a_request_writes_to_it(client: TestClient) -> None:
    address = _create(client, 6).headers["location"]
    _append(client, address, 0, b"abc")
    upload = upload_store.find_upload(address.removeprefix("/uploads/"))
    writer = upload_store.UploadWriter(upload, 3)
    assert client.delete(address, headers=TUS).status_code == 423
    writer.interrupt()
    assert _offset(client, address) == 3
    assert client.delete(address, headers=TUS).status_code == 204
    assert client.delete(address, headers=TUS).status_code == 404
    assert not list(upload.path.parent.glob(f"{upload.id}*"))
    with pytest.raises(NotFound):  # another request has deleted it meanwhile
        upload_store.delete_upload(upload)


@pytest.fixture
def address(client: TestClient) -> Iterator[str]:
    """URL of the application on a socket."""
    with serve(client.app) as url:
        yield url


def test_another_client_uploads_and_resumes(address: str, tmp_path: Path) -> None:
    """The Python client by the authors of the protocol."""
    data = os.urandom(300_000)
    (tmp_path / "clip.mp4").write_bytes(data)
    tus = TusClient(f"{address}/uploads")
    options: dict[str, Any] = {"chunk_size": 100_000, "metadata": {"filename": "clip.mp4"}}
    first = tus.uploader(str(tmp_path / "clip.mp4"), **options)
    first.upload(stop_at=100_000)
    second = tus.uploader(str(tmp_path / "clip.mp4"), url=first.url, **options)
    assert second.offset == 100_000
    second.upload()
    assert upload_store.find_upload(str(first.url).rpartition("/")[2]).path.read_bytes() == data


def test_broken_connection_keeps_the_bytes(address: str, client: TestClient) -> None:
    """A client that disappears in the middle of a request; nothing holds the upload afterwards."""
    mebibyte = 1024**2
    created = _create(client, 3 * mebibyte).headers["location"]
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"PATCH {created} HTTP/1.1\r\nHost: {host}\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\n"
        head += f"Content-Type: application/offset+octet-stream\r\nContent-Length: {3 * mebibyte}\r\n\r\n"
        connection.sendall(head.encode() + bytes(2 * mebibyte))
        _wait_until(lambda: _offset(client, created) >= mebibyte)
        assert _append(client, created, mebibyte, b"").status_code == 423
    _wait_until(lambda: _append(client, created, _offset(client, created), b"").status_code == 204)
    stored = _offset(client, created)
    assert stored >= mebibyte
    assert _append(client, created, stored, bytes(3 * mebibyte - stored)).status_code == 204


def _wait_until(condition: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("the condition is still false")
