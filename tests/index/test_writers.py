"""Crashes of a writer, and concurrent writers: readers see whole generations, and no publication is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from index.files.manifest_format import Manifest
from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore
from tests.index.disk_faults import Crash, fail_at

_ROUNDS = 10

_WRITER = f"""
import sys
from pathlib import Path
import numpy as np
from index.shard_store import ShardStore

store, number = ShardStore(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for turn in range({_ROUNDS}):
    staged = store.stage()
    (staged / "release.json").write_text(f"writer {{number}}, turn {{turn}}")
    release = store.adopt_release(staged)
    first = 1000 * number + 10 * turn
    shard = store.write_shard(
        task=f"{{number}}/{{turn}}",
        release=release.id,
        fingerprint="f",
        ids=np.arange(first, first + 4),
        vectors=np.eye(4, dtype=np.float32),
    )
    print(store.publish(release=release, shards=[shard]).generation, flush=True)
    store.collect_garbage()
"""

_ENDLESS_WRITER = """
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

_HOLDER = """
import sys, time
from pathlib import Path
from index.files.durable_files import exclusive_lock

with exclusive_lock(Path(sys.argv[1]) / "write.lock"):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def process(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that ends with the test."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_concurrent_writers_lose_no_publication(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "index")
    with ExitStack() as stack:
        writers = [stack.enter_context(process(_WRITER, store.root, number)) for number in (1, 2)]
        assert [line(writer) for writer in writers] == ["ready", "ready"]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        printed = [[int(line(writer)) for _ in range(_ROUNDS)] for writer in writers]
        assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert sorted(printed[0] + printed[1]) == [*range(1, 2 * _ROUNDS + 1)]  # each generation once
    snapshot = IndexSnapshot.open(store)
    assert snapshot.degraded == {}
    assert snapshot.generation == 2 * _ROUNDS
    assert set(snapshot.tasks) == {f"{number}/{turn}" for number in (1, 2) for turn in range(_ROUNDS)}
    order = {
        generation: f"{number}/{turn}"
        for number in (1, 2)
        for turn, generation in enumerate(printed[number - 1])
    }
    assert snapshot.tasks == [order[generation] for generation in sorted(order)]


def test_killed_writer_releases_lock(store: ShardStore, publish_task: Callable) -> None:
    before = publish_task(store, "a", [1])
    with process(_HOLDER, store.root) as holder:
        assert line(holder) == "held"
        assert store.manifest() == before  # readers never wait for a writer
        assert IndexSnapshot.open(store).tasks == ["a"]
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(timeout=60)
        assert publish_task(store, "b", [2]).generation == 2


def test_crash_at_any_call_leaves_old_or_new_generation(tmp_path: Path, publish_task: Callable) -> None:
    store = ShardStore(tmp_path / "measured")
    publish_task(store, "a", range(3))
    with fail_at(None) as calls:
        publish_task(store, "b", range(3, 6))
    assert calls.count("replace") == 1
    assert calls[-2:] == ["replace", "fsync"]  # the publish point is the last change, followed by its sync
    assert {"rename", "fsync"} <= set(calls)
    for number in range(1, len(calls) + 1):
        store = ShardStore(tmp_path / str(number))
        before = publish_task(store, "a", range(3))
        with pytest.raises(Crash), fail_at(number):
            publish_task(store, "b", range(3, 6))
        published = number == len(calls)  # the manifest was replaced, only its fsync failed
        snapshot = IndexSnapshot.open(store)
        assert snapshot.degraded == {}
        assert snapshot.tasks == (["a", "b"] if published else ["a"]), (number, calls[number - 1])
        assert published or store.manifest() == before
        after = publish_task(store, "b", range(3, 6))
        assert after.generation == 2
        snapshot = IndexSnapshot.open(store)
        assert (snapshot.tasks, snapshot.degraded) == (["a", "b"], {})


def test_files_are_synced_before_manifest_is_replaced(store: ShardStore, publish_task: Callable) -> None:
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
        publish_task(store, "a", range(3))
    assert unsynced == []


@pytest.mark.slow
def test_killed_writer_loses_no_acknowledged_publication(tmp_path: Path) -> None:
    root = tmp_path / "index"
    chance = random.Random(7)
    acknowledged = -1
    seen = Manifest()
    for _ in range(6):
        with process(_ENDLESS_WRITER, root) as writer:
            for _ in range(chance.randint(1, 8)):
                acknowledged = int(line(writer))
            time.sleep(chance.random() / 50)
            writer.kill()
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
