"""Stores, and helpers that write and publish small tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from index.files.manifest_format import Manifest, ReleaseEntry, SegmentEntry
from index.milvus.milvus_vector_store import MilvusVectorStore
from index.shard_store import ShardStore
from index.store_options import MilvusAddress
from tests.milvus import Milvus

DIM = 8


@pytest.fixture
def store(tmp_path: Path) -> ShardStore:
    """An empty store that keeps its vectors in files."""
    return ShardStore(tmp_path / "index")


@pytest.fixture(scope="module")
def server(milvus_server: Milvus) -> str:
    """Address of the Milvus that the tests of a module share; each test uses collections of its own."""
    return milvus_server.uri


@pytest.fixture
def milvus(server: str, request: pytest.FixtureRequest) -> Iterator[MilvusVectorStore]:
    """A vector store in Milvus, with collections of the test's own."""
    digest = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    vectors = MilvusVectorStore(MilvusAddress(server, collection=f"t_{digest}"))
    yield vectors
    vectors.close()


@pytest.fixture
def unit() -> Callable[..., np.ndarray]:
    """Draw seeded unit vectors ``[count, dim]`` with numbers that half precision represents exactly."""

    def make(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
        vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float16).astype(np.float32)

    return make


@pytest.fixture
def adopt() -> Callable[..., ReleaseEntry]:
    """Stage and adopt a release that contains one text."""

    def make(store: ShardStore, text: str) -> ReleaseEntry:
        staged = store.stage()
        (staged / "release.json").write_text(text)
        (staged / "weights.safetensors").write_bytes(b"\0" * 64)
        return store.adopt_release(staged)

    return make


@pytest.fixture
def write(adopt: Callable[..., ReleaseEntry], unit: Callable[..., np.ndarray]) -> Callable[..., tuple]:
    """Write a release and a task's shard, and return both unpublished."""

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
def publish_vectors(adopt: Callable[..., ReleaseEntry]) -> Callable[..., Manifest]:
    """Publish a shard with these vectors."""

    def make(
        store: ShardStore, ids: Iterable[int], vectors: np.ndarray, queries: np.ndarray | None = None
    ) -> Manifest:
        release = adopt(store, "{}")
        shard = store.write_shard(
            task="a",
            release=release.id,
            fingerprint="encoder of a",
            ids=np.array(list(ids), np.int64),
            vectors=vectors,
            queries=queries,
        )
        return store.publish(release=release, shards=[shard])

    return make


@pytest.fixture
def publish_task(write: Callable[..., tuple]) -> Callable[..., Manifest]:
    """Write and publish a task."""

    def make(store: ShardStore, task: str, ids: Iterable[int], *, seed: int = 0) -> Manifest:
        release, shard = write(store, task, ids, seed=seed)
        return store.publish(release=release, shards=[shard])

    return make
