"""Full disks: the error is raised, no incomplete file is visible or kept, and writing resumes once there is space."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from tests.index.disk_faults import fail_at


@contextmanager
def _no_file_beyond(size: int) -> Iterator[None]:
    """Limit, in the kernel, the size of every file that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
        with _no_file_beyond(size - 1), pytest.raises(OSError, match="File too large"):
            _publish(store, write)
        assert store.manifest() == before
        assert (IndexSnapshot.open(store).tasks, IndexSnapshot.open(store).degraded) == (["a"], {})
        assert _incomplete_files(store) == []
    with _no_file_beyond(sizes[-1]):
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
