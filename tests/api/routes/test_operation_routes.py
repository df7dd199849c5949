"""Syncs, the audit log, stored snapshots and health checks over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from api.routes import library_routes
from cli.commands import doctor
from service.core.settings import Settings
from service.storage import library_files
from tests.api.browser import serve
from tests.api.conftest import BASE_URL


def test_syncs_are_registered_listed_and_removed(client: TestClient, configured: Settings) -> None:
    (configured.media_root / "films").mkdir(exist_ok=True)
    body = {"name": "films", "source": "films", "every_seconds": 900}
    answer = client.post("/syncs", json=body)
    assert answer.status_code == 201, answer.text
    sync = answer.json()
    assert (sync["name"], sync["vanished"], sync["running"], sync["counts"]) == ("films", "keep", False, None)
    assert [found["id"] for found in client.get("/syncs").json()] == [sync["id"]]
    assert client.delete(f"/syncs/{sync['id']}").status_code == 204
    assert client.delete(f"/syncs/{sync['id']}").status_code == 404
    assert client.get("/syncs").json() == []


def test_bad_registrations_name_the_field(client: TestClient) -> None:
    good = {"name": "films", "source": "films", "every_seconds": 900}
    bad = {"source": "../../etc", "every_seconds": 5, "vanished": "burn", "name": "", "unknown": 1}
    for field, value in bad.items():
        answer = client.post("/syncs", json=good | {field: value})
        assert answer.status_code == 422, answer.text
        assert field in answer.text


@pytest.fixture(scope="module")
def sync_id(client: TestClient, configured: Settings) -> str:
    """A sync that was registered and removed."""
    (configured.media_root / "films").mkdir(exist_ok=True)
    body = {"name": "films", "source": "films", "every_seconds": 900}
    sync_id: str = client.post("/syncs", json=body).json()["id"]
    client.delete(f"/syncs/{sync_id}")
    return sync_id


def test_changes_are_listed_with_actor_and_address(client: TestClient, sync_id: str) -> None:
    page = client.get("/audit", params={"target": sync_id}).json()
    assert [entry["action"] for entry in page["entries"]] == ["sync.remove", "sync.register"]
    assert {(entry["actor"], entry["address"]) for entry in page["entries"]} == {("anonymous", "testclient")}
    first = client.get("/audit", params={"target": sync_id, "limit": 1})
    assert 'rel="next"' in first.headers["link"]
    rest = client.get(
        "/audit", params={"target": sync_id, "limit": 1, "cursor": first.json()["next_cursor"]}
    ).json()
    assert [entry["action"] for entry in rest["entries"]] == ["sync.register"]


def test_uploads_are_recorded_when_their_last_byte_has_arrived(client: TestClient) -> None:
    tus = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
    created = client.post("/uploads", headers={**tus, "Upload-Length": "4"}, content=b"ab")
    path = created.headers["location"]
    target = {"target": path.rpartition("/")[2]}
    assert client.get("/audit", params=target).json()["entries"] == []
    client.patch(path, headers={**tus, "Upload-Offset": "2"}, content=b"cd")
    client.patch(path, headers={**tus, "Upload-Offset": "4"}, content=b"")  # a repeated request
    client.delete(path, headers=tus)
    entries = client.get("/audit", params=target).json()["entries"]
    assert [entry["action"] for entry in entries] == ["upload.delete", "upload.finish"]
    assert entries[1]["details"]["bytes"] == 4


@pytest.mark.parametrize(
    "query",
    [
        "atcor=ada",
        "cursor=broken",
        "kind=robot",
        "target=%00",
        "limit=1001",
        "after=2026-01-02&before=2026-01-01",
    ],
)
def test_bad_parameters_name_the_field(client: TestClient, query: str) -> None:
    answer = client.get(f"/audit?{query}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].startswith(query.partition("=")[0])


OLD, NEW = "cinestrata-20261101T080000Z-1.tar", "cinestrata-20261102T080000Z-2.tar"


@pytest.fixture
def folder(configured: Settings) -> Iterator[Path]:
    """The folder of the snapshots, with two archives, files of other names, and links."""
    folder = configured.backups_dir
    folder.mkdir(exist_ok=True)
    (folder / OLD).write_bytes(b"old" * 100)
    (folder / NEW).write_bytes(b"new" * 200)
    (folder / "notes.txt").write_text("private")
    (folder / "cinestrata-20269999T080000Z-3.tar").write_text("no date")
    (folder / "cinestrata-20261103T080000Z-4.tar").symlink_to(folder / "notes.txt")
    (folder / "cinestrata-20261104T080000Z-5.tar").mkdir()
    yield folder
    for path in folder.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()


def test_snapshots_are_listed_newest_first(client: TestClient, folder: Path) -> None:
    assert client.get("/snapshots").json() == [
        {"name": NEW, "bytes": 600, "created_at": "2026-11-02T08:00:00Z"},
        {"name": OLD, "bytes": 300, "created_at": "2026-11-01T08:00:00Z"},
    ]
    assert client.get("/snapshots", params={"page": 2}).status_code == 422


def test_download_continues_with_a_range(client: TestClient, folder: Path) -> None:
    whole = client.get(f"/snapshots/{NEW}")
    assert (whole.status_code, whole.content) == (200, b"new" * 200)
    assert whole.headers["content-disposition"] == f'attachment; filename="{NEW}"'
    assert whole.headers["content-type"] == "application/x-tar"
    assert whole.headers["cache-control"] == "no-store"
    rest = client.get(f"/snapshots/{NEW}", headers={"Range": "bytes=590-"})
    assert (rest.status_code, rest.content) == (206, (b"new" * 200)[590:])
    assert client.get(f"/snapshots/{NEW}", headers={"Range": "bytes=600-"}).status_code == 416
    unchanged = client.get(f"/snapshots/{NEW}", headers={"If-None-Match": whole.headers["etag"]})
    assert unchanged.status_code == 304
    assert client.head(f"/snapshots/{NEW}").headers["content-length"] == "600"
    entries = client.get("/audit", params={"action": "snapshot.download"}).json()["entries"]
    assert [(entry["target"], entry["details"]["range"]) for entry in entries] == [
        (NEW, "bytes=590-"),
        (NEW, None),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "..%2Fcatalog.sqlite3",
        "%2Fetc%2Fpasswd",
        "cinestrata-20261103T080000Z-4.tar",  # a link
        "cinestrata-20261104T080000Z-5.tar",  # a folder
        "cinestrata-20269999T080000Z-3.tar",
        f"{NEW}%00",
        f"{NEW}%0A",
        NEW.replace("1", "\u0661"),
    ],
)
def test_other_files_are_out_of_reach(client: TestClient, folder: Path, name: str) -> None:
    before = {path.name for path in folder.iterdir()}
    for method in ("GET", "HEAD", "DELETE"):
        assert client.request(method, f"/snapshots/{name}").status_code == 404
    assert {path.name for path in folder.iterdir()} == before


def test_snapshot_is_deleted_once(client: TestClient, folder: Path) -> None:
    assert client.delete(f"/snapshots/{OLD}").status_code == 204
    assert client.delete(f"/snapshots/{OLD}").status_code == 404
    assert [each["name"] for each in client.get("/snapshots").json()] == [NEW]
    entries = client.get("/audit", params={"action": "snapshot.delete"}).json()["entries"]
    assert [(entry["target"], entry["actor"]) for entry in entries] == [(OLD, "anonymous")]


def test_readyz_names_a_data_folder_that_cannot_be_written(
    client: TestClient, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(library_files.tempfile, "NamedTemporaryFile", refuse)
    response = client.get("/readyz")
    assert response.status_code == 503
    assert response.json()["ready"] is False
    assert str(configured.data_dir) in response.json()["checks"]["data_folder"]
    assert "Permission denied" in response.json()["checks"]["data_folder"]
    monkeypatch.undo()
    assert client.get("/readyz").json()["checks"]["data_folder"] == "ok"


def test_checks_say_why_videos_cannot_be_read(
    client: TestClient, configured: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = {"speech": "the package is not installed", "screen": "damaged"}
    for module in (library_routes, doctor):
        monkeypatch.setattr(module, "available_sources", lambda _: problems)
    for name, value in (("read", "file,speech"), ("speech_model", "base")):
        monkeypatch.setitem(configured.__dict__, name, value)
    checks = client.get("/readyz").json()["checks"]
    assert checks["reading of speech"] == problems["speech"]
    assert "reading of screen" not in checks
    assert doctor.check_reading(configured) == (
        "reads file,speech; speech model base; speech is off: the package is not installed"
    )


@pytest.fixture(scope="module")
def status_without_host(client: TestClient) -> Iterator[Callable[[str, str], tuple[int, bool]]]:
    """Returns a function that sends a request of HTTP/1.0 without a Host header: status, and whether a body follows."""
    with serve(client.app) as url:
        address = urlsplit(url)

        def send(method: str, path: str) -> tuple[int, bool]:
            with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
                connection.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
            head, _, body = answer.partition(b"\r\n\r\n")
            return int(head.split(b" ")[1]), bool(body)

        yield send


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/livez?t=1", "/v1/livez", "/v1/readyz"])
def test_health_checks_need_no_host(
    status_without_host: Callable[[str, str], tuple[int, bool]], path: str
) -> None:
    expected = (503,) if "readyz" in path else ()  # without a broker
    for method, has_body in (("GET", True), ("HEAD", False)):
        status, body = status_without_host(method, path)
        assert (status in (200, *expected), body) == (True, has_body)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/search?q=dog",
        "/videos",
        "/livezz",
        "/livez/",
        "/livez/../videos",
        "//livez",
        "/static/livez",
        "/metrics",
    ],
)
def test_other_paths_need_a_local_host(
    client: TestClient, status_without_host: Callable[[str, str], tuple[int, bool]], path: str
) -> None:
    assert status_without_host("GET", path)[0] == 403
    assert client.get(f"{BASE_URL}{path}", headers={"Host": "evil.example"}).status_code == 403


def test_other_methods_need_a_local_host(status_without_host: Callable[[str, str], tuple[int, bool]]) -> None:
    assert status_without_host("OPTIONS", "/")[0] == status_without_host("POST", "/mcp")[0] == 403


@pytest.mark.parametrize("path", ["/livez", "/readyz"])  # the latter names domains, so pages must not read it
def test_health_checks_refuse_foreign_hosts_on_loopback(client: TestClient, path: str) -> None:
    assert client.get(path, headers={"Host": "evil.example"}).status_code == 403
    assert client.get(path, headers={"Host": "[::1]:8000"}).status_code in (200, 503)  # 503 without a broker
