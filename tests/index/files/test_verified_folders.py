"""Verified folders: checksums are compared again after a change, and only then."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from index.files import store_folder
from index.files.durable_files import hash_files
from index.files.store_folder import VerifiedFolders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "release"
    path.mkdir()
    (path / "release.json").write_text("{}")
    (path / "weights").write_bytes(b"123")
    return path


def test_unchanged_folder_is_read_once_and_compared_with_the_given_checksums(folder: Path) -> None:
    files, verified = hash_files(folder), VerifiedFolders()
    with patch.object(store_folder, "hash_files", wraps=hash_files) as hashing:
        assert verified.is_intact(folder, files)
        assert verified.is_intact(folder, dict(files))
    assert hashing.call_count == 1
    assert not verified.is_intact(folder, {**files, "weights": files["release.json"]})
    assert not verified.is_intact(folder, {"release.json": files["release.json"]})


@pytest.mark.parametrize("change", ["content", "replaced", "added", "nested", "removed", "folder"])
def test_changed_folder_is_not_intact(folder: Path, change: str) -> None:
    files, verified = hash_files(folder), VerifiedFolders()
    assert verified.is_intact(folder, files)
    weights = folder / "weights"
    if change == "content":
        weights.write_bytes(b"124")
        os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    elif change == "replaced":
        times = weights.stat()
        other = folder.parent / "other"
        other.write_bytes(b"124")
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.replace(weights)
    elif change == "added":
        (folder / "more").touch()
    elif change == "nested":
        (folder / "more").mkdir()
    elif change == "removed":
        weights.unlink()
    else:
        folder.rename(folder.parent / "elsewhere")
    assert not verified.is_intact(folder, files)
    if change == "content":
        weights.write_bytes(b"123")
        os.utime(weights, ns=(0, 1))
        assert verified.is_intact(folder, files), "it is restored"
