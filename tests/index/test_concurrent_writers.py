"""Concurrent writers: no publication is lost, and a dead writer does not block the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from index.index_snapshot import IndexSnapshot
from index.shard_store import ShardStore

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
    assert sorted(printed[0] + printed[1]) == list(
        range(1, 2 * _ROUNDS + 1)
    )  # every generation was published once
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
