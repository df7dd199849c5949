"""List, download and deletion of stored snapshots over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.core.settings import Settings

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
    assert (whole.headers["content-type"], whole.headers["cache-control"]) == (
        "application/x-tar",
        "no-store",
    )
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
