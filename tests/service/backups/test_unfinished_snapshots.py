"""Temporary folders of backups whose process was killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from service.backups.snapshots import sweep_unfinished_snapshots
from service.core.settings import Settings
from service.maintenance import MaintenanceThread

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


def test_library_without_backups_has_none(configured: Settings) -> None:
    assert sweep_unfinished_snapshots() == 0
