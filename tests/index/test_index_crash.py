"""A writer may die at any moment: readers see the last generation, and a second try succeeds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore

_CALLS = ("fsync", "rename", "replace", "utime")


class Crash(BaseException):
    """Nobody may catch it, as nobody catches a power cut."""


@contextmanager
def crash_at(number: int | None) -> Iterator[list[str]]:
    """Raise at the number-th call that changes what is on disk; collects the calls."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in _CALLS}

    def counted(name: str) -> Callable:
        def call(*arguments: object, **named: object) -> object:
            calls.append(name)
            if number is not None and len(calls) == number:
                raise Crash
            return real[name](*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in _CALLS:
            patch.setattr(os, name, counted(name))
        yield calls


def _calls_of_one_publication(tmp_path: Path, lay_down: Callable) -> list[str]:
    store = ShardStore(tmp_path / "measured")
    lay_down(store, "a", range(3))
    with crash_at(None) as calls:
        lay_down(store, "b", range(3, 6))
    return calls


def test_a_crash_at_any_point_leaves_one_of_two_whole_generations(tmp_path: Path, lay_down: Callable) -> None:
    calls = _calls_of_one_publication(tmp_path, lay_down)
    assert calls.count("replace") == 1
    assert calls[-2:] == ["replace", "fsync"]  # the publish point is the last thing, then it is made durable
    assert {"rename", "fsync"} <= set(calls)
    for number in range(1, len(calls) + 1):
        store = ShardStore(tmp_path / str(number))
        before = lay_down(store, "a", range(3))
        with pytest.raises(Crash), crash_at(number):
            lay_down(store, "b", range(3, 6))
        published = number == len(calls)  # the replacement is done, only its fsync failed
        snapshot = IndexSnapshot.open(store)
        assert snapshot.degraded == {}
        assert snapshot.tasks == (["a", "b"] if published else ["a"]), (number, calls[number - 1])
        assert published or store.manifest() == before
        after = lay_down(store, "b", range(3, 6))
        assert after.generation == 2
        snapshot = IndexSnapshot.open(store)
        assert (snapshot.tasks, snapshot.degraded) == (["a", "b"], {})


def test_everything_is_durable_before_it_is_visible(store: ShardStore, lay_down: Callable) -> None:
    synced: set[tuple[int, int]] = set()
    unsynced: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.add((status.st_dev, status.st_ino))
        real_fsync(descriptor)

    def replace(source: os.PathLike, target: os.PathLike) -> None:
        for path in [store.root, *store.root.rglob("*")]:
            status = path.stat()
            staging = path.name in ("tmp", "write.lock")
            if not staging and (status.st_dev, status.st_ino) not in synced:
                unsynced.append(str(path.relative_to(store.root)))
        real_replace(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "replace", replace)
        lay_down(store, "a", range(3))
    assert unsynced == []


_WRITER = """
import sys
from pathlib import Path
import numpy as np
from index.shard_store import ShardStore

store = ShardStore(Path(sys.argv[1]))
number = len(store.manifest().shards)
while True:
    vectors = np.random.default_rng(number).normal(size=(20, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    staged = store.stage()
    (staged / "release.json").write_text(f"after {number}")
    release = store.adopt_release(staged)
    shard = store.write_shard(
        task=f"task {number}",
        release=release.id,
        fingerprint="f",
        ids=np.arange(20 * number, 20 * number + 20),
        vectors=vectors,
    )
    store.publish(release=release, shards=[shard])
    print(number, flush=True)
    number += 1
"""


def test_a_writer_that_is_killed_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    root = tmp_path / "index"
    chance = random.Random(7)
    acknowledged = -1
    seen = Manifest.empty()
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(root)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert writer.stdout is not None
        try:
            for _ in range(chance.randint(1, 8)):
                line = writer.stdout.readline()
                assert line, "the writer ended by itself"
                acknowledged = int(line)
            time.sleep(chance.random() / 50)
        finally:
            os.kill(writer.pid, signal.SIGKILL)
            rest = writer.communicate()[0].split()
        acknowledged = int(rest[-1]) if rest else acknowledged
        store = ShardStore(root)
        snapshot = IndexSnapshot.open(store)
        assert snapshot.degraded == {}
        assert snapshot.generation == len(snapshot.tasks)
        assert len(snapshot.tasks) >= acknowledged + 1
        assert list(seen.shards.items()) == list(snapshot.manifest.shards.items())[: len(seen.shards)]
        for task in snapshot.tasks:
            shard = snapshot.shard(task, fingerprint="f")
            assert len(shard.vectors(shard.ids)) == 20
        seen = snapshot.manifest
    assert seen.generation > 6
