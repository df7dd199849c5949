"""Backups of other origin: files without an end, devices, and descriptions that cannot be parsed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from service.backups.backup_files import (
    BackupDamaged,
    BackupFile,
    copy_and_verify,
    open_backup,
    read_description,
)


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


def test_deeply_nested_description_is_not_readable() -> None:
    with pytest.raises(BackupDamaged, match="not readable"):
        read_description(lambda name: io.BytesIO(b"[" * 100_000))
