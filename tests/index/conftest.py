"""A store, and tasks to lay down in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.shard_store import ShardStore
from tests.milvus import Milvus

DIM = 8


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    return ShardStore(tmp_path / "index")


@pytest.fixture(scope="module")
def server(milvus_server: Milvus) -> str:
    """Address of a Milvus that the tests of a file share; each uses collections of its own."""
    return milvus_server.uri


@pytest.fixture
def unit() -> Callable[..., np.ndarray]:
    """Seeded unit vectors ``[count, dim]``, of numbers that half precision holds."""

    def make(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
        vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float16).astype(np.float32)

    return make


@pytest.fixture
def adopt() -> Callable[..., ReleaseEntry]:
    """Stage and adopt a release that holds one text."""

    def make(store: ShardStore, text: str) -> ReleaseEntry:
        staged = store.stage()
        (staged / "release.json").write_text(text)
        (staged / "weights.safetensors").write_bytes(b"\0" * 64)
        return store.adopt_release(staged)

    return make


@pytest.fixture
def write(adopt: Callable[..., ReleaseEntry], unit: Callable[..., np.ndarray]) -> Callable[..., tuple]:
    """Write the release and the shard of a task: ``(release, shard)``, not yet published."""

    def make(
        store: ShardStore, task: str, ids: Iterable[int], *, seed: int = 0, dim: int = DIM
    ) -> tuple[ReleaseEntry, SegmentEntry]:
        numbers = np.array(list(ids), np.int64)
        release = adopt(store, f"after {task}")
        shard = store.write_shard(
            task=task,
            release=release.id,
            fingerprint=f"encoder of {task}",
            ids=numbers,
            vectors=unit(len(numbers), seed, dim),
        )
        return release, shard

    return make


@pytest.fixture
def lay_down(write: Callable[..., tuple]) -> Callable[..., Manifest]:
    """Write and publish a task."""

    def make(store: ShardStore, task: str, ids: Iterable[int], *, seed: int = 0) -> Manifest:
        release, shard = write(store, task, ids, seed=seed)
        return store.publish(release=release, shards=[shard])

    return make
