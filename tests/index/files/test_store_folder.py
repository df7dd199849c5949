"""Files of the store: exclusive locks, folders with verified checksums, and full disks."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from index.files import store_folder
from index.files.durable_files import exclusive_lock, hash_file, hash_files
from index.files.store_folder import VerifiedFolders
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from tests.index.disk_faults import fail_at, no_file_beyond


def _is_free(path: Path) -> bool:
    """Check whether another thread gets the lock at once."""

    def take() -> bool:
        try:
            with exclusive_lock(path, timeout=0):
                return True
        except TimeoutError:
            return False

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(take).result()


def test_lock_is_taken_again_by_its_thread_and_freed_by_the_outermost_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive_lock(path):
        with exclusive_lock(path), exclusive_lock(path, timeout=0):
            assert not _is_free(path)
        assert not _is_free(path)
    assert _is_free(path)
    with pytest.raises(ZeroDivisionError), exclusive_lock(path):
        raise ZeroDivisionError
    assert _is_free(path)
    with exclusive_lock(path):
        assert not _is_free(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "release"
    path.mkdir()
    (path / "release.json").write_text("{}")
    (path / "weights").write_bytes(b"123")
    return path


def test_unchanged_folder_is_read_once_and_compared_with_the_given_checksums(folder: Path) -> None:
    files, verified = hash_files(folder), VerifiedFolders()
    with patch.object(store_folder, "hash_file", wraps=hash_file) as hashing:
        assert verified.is_intact(folder, files, ["weights"])
        assert hashing.call_count == 1
        assert verified.is_intact(folder, files)
        assert verified.is_intact(folder, dict(files))
    assert hashing.call_count == len(files)
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


def _full_at(number: int | None) -> AbstractContextManager[list[str]]:
    """Report a full disk in one of the calls that write to it."""
    error = partial(OSError, errno.ENOSPC, os.strerror(errno.ENOSPC))
    return fail_at(number, error, ("fsync", "rename", "replace"))


def _publish(store: ShardStore, write: Callable) -> None:
    release, shard = write(store, "b", range(3, 300))
    store.publish(release=release, shards=[shard])


def _incomplete_files(store: ShardStore) -> list[str]:
    """List the names of incomplete files."""
    return [path.name for path in (*(store.root / "tmp").iterdir(), *store.root.glob("*.new"))]


def test_full_disk_keeps_last_generation(store: ShardStore, publish_task: Callable, write: Callable) -> None:
    before = publish_task(store, "a", range(3))
    # The limit excludes each file of a publication once, smallest first.
    reference = ShardStore(store.root.parent / "reference")
    publish_task(reference, "a", range(3))
    _publish(reference, write)
    manifest = reference.manifest()
    entry = manifest.shards["b"]
    written = [*reference.shard_folder(entry.id).iterdir(), reference.manifest_path]
    sizes = sorted(path.stat().st_size for path in written)
    assert len(sizes) == 4
    for size in sizes:
        with no_file_beyond(size - 1), pytest.raises(OSError, match="File too large"):
            _publish(store, write)
        assert store.manifest() == before
        assert (IndexSnapshot.open(store).tasks, IndexSnapshot.open(store).degraded) == (["a"], {})
        assert _incomplete_files(store) == []
    with no_file_beyond(sizes[-1]):
        _publish(store, write)
    assert (IndexSnapshot.open(store).tasks, IndexSnapshot.open(store).degraded) == (["a", "b"], {})


def test_full_disk_at_any_call_leaves_old_or_new_generation(
    store: ShardStore, publish_task: Callable, write: Callable
) -> None:
    reference = ShardStore(store.root.parent / "reference")
    publish_task(reference, "a", range(3))
    with _full_at(None) as calls:
        _publish(reference, write)
    for number in range(1, len(calls) + 1):
        fresh = ShardStore(store.root / str(number))
        before = publish_task(fresh, "a", range(3))
        with pytest.raises(OSError, match="No space left"), _full_at(number):
            _publish(fresh, write)
        replaced = number == len(calls)  # the manifest was replaced, only its fsync failed
        assert (fresh.manifest() == before) is not replaced
        assert IndexSnapshot.open(fresh).degraded == {}
        assert replaced or not list(fresh.root.glob("*.new"))
        _publish(fresh, write)
        assert (IndexSnapshot.open(fresh).tasks, fresh.manifest().generation) == (["a", "b"], 2)
