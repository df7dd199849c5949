"""Uploads newer than a restored backup have no task, and stay for a day."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from service.catalog.database import dispose
from service.core.settings import Settings, settings
from service.tasks.uploads import uploaded_videos
from tests.cli.invocation import run

STORED, NEWER = "0123456789abcdef", "tsk_00000000000000aa"
DAY = timedelta(days=1).total_seconds()


def _restore(backup: Path, data: Path) -> str:
    for name in ("index", "catalog.sqlite3", "catalog.sqlite3-wal", "catalog.sqlite3-shm"):
        path = data / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    outcome = run("restore", str(backup), "--data", str(data))
    assert outcome.exit_code == 0, outcome.output
    return " ".join(outcome.output.split())


def test_uploads_newer_than_the_backup_stay_for_a_day(
    folder: Settings, publish_task: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are older than a day, and the workers start right after the restore."""
    publish_task(STORED)
    backup = tmp_path / "library.tar"
    assert run("snapshot", str(backup)).exit_code == 0
    uploads = [settings().uploads_dir / name for name in (f"tsk_{STORED}", NEWER)]
    dispose()
    assert "after a day" not in _restore(backup, folder.data_dir)
    for upload in uploads:
        upload.mkdir(parents=True)
        (upload / "a.mp4").write_bytes(b"video")
    written = max(upload.stat().st_ctime for upload in uploads)
    dispose()
    output = _restore(backup, folder.data_dir)
    assert "1 uploads belong to no task in the catalog and will be removed after a day" in output
    monkeypatch.setattr(uploaded_videos.time, "time", lambda: written + DAY + 0.001)
    assert uploaded_videos.sweep_uploads() == []
    assert all((upload / "a.mp4").is_file() for upload in uploads)
    renewed = uploads[1].stat().st_ctime
    monkeypatch.setattr(uploaded_videos.time, "time", lambda: renewed + DAY + 1)
    assert uploaded_videos.sweep_uploads() == [NEWER]
    assert uploads[0].is_dir()
