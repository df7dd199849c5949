"""Files of backups, and temporary folders of backups whose process was killed."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from pathlib import Path

import pytest

from service.backups import backup_files
from service.backups.backup_files import (
    BackupDamaged,
    BackupFile,
    copy_and_verify,
    open_backup,
    read_description,
)
from service.backups.snapshots import sweep_unfinished_snapshots
from service.celery_worker import MaintenanceThread
from service.core.settings import Settings


class _EndlessFile(io.BytesIO):
    reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.reads += 1
        assert self.reads < 10
        return bytes(1000)


def test_file_without_an_end_is_copied_no_further_than_its_size(tmp_path: Path) -> None:
    described = BackupFile(Path("index/a"), 1500, "0" * 64)
    with pytest.raises(BackupDamaged, match="index/a differs"):
        copy_and_verify(lambda name: _EndlessFile(), "index/a", described, tmp_path / "a")
    assert (tmp_path / "a").stat().st_size == 2000


def test_device_in_a_folder_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "a").symlink_to("/dev/zero")
    with open_backup(tmp_path) as open_file, pytest.raises(BackupDamaged, match="index/a is not a file"):
        open_file("index/a")


def test_large_or_deeply_nested_description_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of an archive takes no space."""
    with pytest.raises(BackupDamaged, match="not readable"):
        read_description(lambda name: io.BytesIO(b"[" * 100_000))
    monkeypatch.setattr(backup_files, "_MAX_DESCRIPTION_BYTES", 1000)
    with pytest.raises(BackupDamaged, match="larger than 1000 bytes"):
        read_description(lambda name: io.BytesIO(bytes(1001)))


@pytest.mark.parametrize("size", [None, "8", -1, 1.5, True, 2**63])
def test_size_other_than_a_number_of_bytes_is_refused(size: object) -> None:
    """Without a size, a file of the backup could fill the disk."""
    entry = {"bytes": size, "sha256": "0" * 64}
    text = json.dumps({"schema": 1, "files": {"index/manifest.json": entry}})
    with pytest.raises(BackupDamaged, match="not a number of bytes"):
        read_description(lambda name: io.BytesIO(text.encode()))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_archive_entry_other_than_a_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    """A symbolic link to itself was followed until the recursion limit."""
    with tarfile.open(tmp_path / "library.tar", "w") as archive:
        member = tarfile.TarInfo("index/a")
        member.type, member.linkname = kind, "a"
        archive.addfile(member)
    refused = pytest.raises(BackupDamaged, match="index/a is not a file")
    with open_backup(tmp_path / "library.tar") as open_file, refused:
        open_file("index/a")


HOURS = 3600.0


@pytest.fixture
def backups(configured: Settings) -> Path:
    configured.backups_dir.mkdir()
    return configured.backups_dir


def _age(folder: Path, seconds: float) -> None:
    """Set the last change of a folder and of its files to the past."""
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (time.time() - seconds,) * 2, follow_symlinks=False)


def _unfinished(backups: Path, name: str, seconds: float) -> Path:
    folder = backups / name
    folder.mkdir()
    (folder / "part.tar").write_bytes(b"vectors")
    _age(folder, seconds)
    return folder


def test_maintenance_removes_the_folder_of_a_killed_process(backups: Path) -> None:
    folder = _unfinished(backups, ".snapshot-abcd1234", 23 * HOURS)
    assert sweep_unfinished_snapshots() == 0
    _age(folder, 30 * HOURS)
    (folder / "part.tar").write_bytes(b"vectors of a running process")
    os.utime(folder, (0, 0))
    assert sweep_unfinished_snapshots() == 0
    _age(folder, 25 * HOURS)
    thread = MaintenanceThread()
    thread.start()
    thread.stop()
    assert list(backups.iterdir()) == []
    backups.rmdir()
    assert sweep_unfinished_snapshots() == 0, "a library without backups"


def test_other_entries_and_links_stay(backups: Path, tmp_path: Path) -> None:
    for name in ("cinestrata-20261101T080000Z-1.tar", ".snapshot-own notes", "snapshot-abcd1234"):
        _unfinished(backups, name, 90 * HOURS)
    (backups / ".snapshot-file0000").write_bytes(b"")
    target = _unfinished(tmp_path, "target", 90 * HOURS)
    (backups / ".snapshot-link0000").symlink_to(target)
    for path in backups.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    before = sorted(path.name for path in backups.iterdir())
    assert sweep_unfinished_snapshots() == 0
    assert sorted(path.name for path in backups.iterdir()) == before
    assert (target / "part.tar").exists()
