"""Temporary folders of backups whose process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.backups.stored_snapshots import snapshot_folder, sweep_unfinished_snapshots
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
    script = (
        "import sys, time; from pathlib import Path; "
        "from service.backups.stored_snapshots import snapshot_folder\n"
        "with snapshot_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'part.tar').write_bytes(b'vectors'); print(folder, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(backups)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        _age(folder, 2 * HOURS)
        assert sweep_unfinished_snapshots() == 0  # its process is alive
        process.send_signal(signal.SIGKILL)
    assert (folder / "part.tar").exists()
    _sweep_of_a_worker()
    assert list(backups.iterdir()) == []


def _sweep_of_a_worker() -> None:
    thread = MaintenanceThread()
    thread.start()
    thread.stop()


def test_folder_in_use_stays(backups: Path) -> None:
    with snapshot_folder(backups) as folder:
        (folder / "part.tar").write_bytes(b"vectors")
        _age(folder, 30 * HOURS)
        assert sweep_unfinished_snapshots() == 0
        assert (folder / "part.tar").exists()
    assert list(backups.iterdir()) == []


def test_vanished_file_of_a_folder_in_use_is_ignored(backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite deletes the journal of the catalog while the sweep lists the folder."""
    walk = os.walk
    with snapshot_folder(backups) as folder:
        journal = folder / "catalog.sqlite3-journal"
        journal.write_bytes(b"pages")
        _age(folder, 30 * HOURS)

        def delete_after_listing(top: Path) -> list[tuple[str, list[str], list[str]]]:
            found = list(walk(top))
            journal.unlink()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(os, "walk", delete_after_listing)
            assert sweep_unfinished_snapshots() == 0
        assert not journal.exists()
        assert folder.exists()


def test_folder_stays_for_an_hour(backups: Path) -> None:
    folder = _unfinished(backups, ".snapshot-abcd1234", 0.9 * HOURS)
    assert sweep_unfinished_snapshots() == 0
    _age(folder, 2 * HOURS)
    (folder / "part.tar").write_bytes(b"vectors of a process without a lock")
    os.utime(folder, (0, 0))
    assert sweep_unfinished_snapshots() == 0
    _age(folder, 1.1 * HOURS)
    assert sweep_unfinished_snapshots() == 1
    assert not folder.exists()


def test_other_entries_and_links_stay(backups: Path, tmp_path: Path) -> None:
    for name in ("cinestrata-20261101T080000Z-1.tar", ".snapshot-own notes", "snapshot-abcd1234"):
        _unfinished(backups, name, 9 * HOURS)
    (backups / ".snapshot-file0000").write_bytes(b"")
    target = _unfinished(tmp_path, "target", 9 * HOURS)
    (backups / ".snapshot-link0000").symlink_to(target)
    held = _unfinished(backups, ".snapshot-held0000", 9 * HOURS)
    (held / "lock").symlink_to(target / "part.tar")
    for path in backups.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    _age(held, 9 * HOURS)
    before = sorted(path.name for path in backups.iterdir())
    assert sweep_unfinished_snapshots() == 0
    assert sorted(path.name for path in backups.iterdir()) == before
    assert (target / "part.tar").exists()


def test_library_without_backups_has_none(configured: Settings) -> None:
    assert sweep_unfinished_snapshots() == 0
