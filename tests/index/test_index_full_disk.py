"""A disk that is full: the error is told, nothing half-written is seen or kept, and with room again it goes on."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore


@contextmanager
def _no_file_beyond(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond so many bytes, whoever writes it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def _full_at(number: int | None) -> Iterator[list[str]]:
    """The number-th call that reaches the disk says that it is full; collects the calls."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def counted(name: str) -> Callable:
        def call(*arguments: object, **named: object) -> object:
            calls.append(name)
            if len(calls) == number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real[name](*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(os, name, counted(name))
        yield calls


def _publish(store: ShardStore, write: Callable) -> None:
    release, shard = write(store, "b", range(3, 300))
    store.publish(release=release, shards=[shard])


def _left(store: ShardStore) -> list[str]:
    """What somebody wrote and nobody finished."""
    return [path.name for path in (*(store.root / "tmp").iterdir(), *store.root.glob("*.new"))]


def test_a_file_that_cannot_grow_leaves_the_last_generation(
    store: ShardStore, lay_down: Callable, write: Callable
) -> None:
    before = lay_down(store, "a", range(3))
    # Each file that a publication writes, smallest first, is the first that does not fit once.
    reference = ShardStore(store.root.parent / "reference")
    lay_down(reference, "a", range(3))
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
        assert _left(store) == []
    with _no_file_beyond(sizes[-1]):
        _publish(store, write)
    assert (IndexSnapshot.open(store).tasks, IndexSnapshot.open(store).degraded) == (["a", "b"], {})


def test_a_disk_that_fills_up_at_any_call_leaves_one_of_two_whole_generations(
    store: ShardStore, lay_down: Callable, write: Callable
) -> None:
    reference = ShardStore(store.root.parent / "reference")
    lay_down(reference, "a", range(3))
    with _full_at(None) as calls:
        _publish(reference, write)
    for number in range(1, len(calls) + 1):
        fresh = ShardStore(store.root / str(number))
        before = lay_down(fresh, "a", range(3))
        with pytest.raises(OSError, match="No space left"), _full_at(number):
            _publish(fresh, write)
        replaced = number == len(calls)  # only making it durable failed
        assert (fresh.manifest() == before) is not replaced
        assert IndexSnapshot.open(fresh).degraded == {}
        assert replaced or not list(fresh.root.glob("*.new"))
        _publish(fresh, write)
        assert (IndexSnapshot.open(fresh).tasks, fresh.manifest().generation) == (["a", "b"], 2)
