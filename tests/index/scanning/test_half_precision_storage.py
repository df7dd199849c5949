"""Storage in half precision with scores in single precision, and libraries in single precision (schema 1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest

from index.files.durable_files import hash_files
from index.files.manifest_format import SegmentEntry, content_id
from index.index_snapshot import IndexSnapshot
from index.scanning.segment import Segment
from index.shard_store import ShardStore

DIM = 8


def _open(store: ShardStore, entry: SegmentEntry) -> Segment:
    return Segment.open(store.shard_folder(entry.id), entry)


def _unrounded(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _brute_force(stored: np.ndarray, query: np.ndarray) -> list[float]:
    """Inner products of rounded rows, in double precision."""
    return [sum(float(a) * float(b) for a, b in zip(row, query, strict=True)) for row in stored]


@pytest.mark.parametrize("dim", [7, 8, 33])
def test_scan_ranks_like_brute_force_on_rounded_vectors(store: ShardStore, dim: int) -> None:
    vectors = _unrounded(200, dim, seed=dim)
    entry = store.write_shard(task="t", release="r", fingerprint="f", ids=np.arange(200), vectors=vectors)
    shard = _open(store, entry)
    rounded = vectors.astype(np.float16)
    assert (shard.vectors(shard.ids) == rounded.astype(np.float32)).all()
    assert not (rounded == vectors).all()
    for query in _unrounded(4, dim, seed=100 + dim):
        scores = np.array(_brute_force(rounded, query))
        (hits,) = shard.search_many(query[None], 50)
        assert hits.ids.tolist() == np.argsort(-scores)[:50].tolist()
        np.testing.assert_allclose(hits.scores, scores[hits.ids], atol=1e-6)
        # Rounding the rows changes a cosine by less than half a unit in the last place of half precision.
        assert np.abs(scores - vectors.astype(float) @ query).max() < 2**-11


def test_equal_vectors_have_equal_scores_in_every_row(store: ShardStore) -> None:
    # A scan with a different order of summation in some rows would not order these by id.
    vectors = np.repeat(_unrounded(1, 515, seed=1), 1003, axis=0)
    entry = store.write_shard(task="t", release="r", fingerprint="f", ids=np.arange(1003), vectors=vectors)
    (hits,) = _open(store, entry).search_many(_unrounded(1, 515, seed=2), 1003)
    assert len(np.unique(hits.scores)) == 1
    assert hits.ids.tolist() == list(range(1003))


def test_vector_takes_two_bytes_per_dimension(store: ShardStore) -> None:
    entry = store.write_shard(
        task="t", release="r", fingerprint="f", ids=np.arange(1000), vectors=_unrounded(1000, 64, seed=0)
    )
    size = (store.shard_folder(entry.id) / "vectors.faiss").stat().st_size
    assert 1000 * 64 * 2 <= size < 1000 * 64 * 2 + 1024
    assert entry.dtype == "float16"


def _write_schema_1(root: Path, vectors: np.ndarray, ids: np.ndarray) -> bytes:
    """Write a library of one task with schema 1; returns the bytes of its vector file."""
    release = root / "releases" / "new"
    release.mkdir(parents=True)
    (release / "release.json").write_text("{}")
    released = hash_files(release)
    release.rename(root / "releases" / content_id(released))
    shard = root / "shards" / "new"
    shard.mkdir(parents=True)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    faiss.write_index(flat, str(shard / "vectors.faiss"))
    np.save(shard / "ids.npy", ids)
    described = {
        "schema": 1,
        "task": "old",
        "release": content_id(released),
        "fingerprint": "encoder of old",
        "count": len(ids),
        "dim": vectors.shape[1],
        "first_id": int(ids[0]),
        "last_id": int(ids[-1]),
    }
    files = hash_files(shard)
    full = {**described, "metric": "inner_product", "dtype": "float32", "files": files}
    (shard / "shard.json").write_text(json.dumps(full, indent=1) + "\n")
    files = hash_files(shard)
    size = sum(path.stat().st_size for path in shard.iterdir())
    shard.rename(root / "shards" / content_id(files))
    del described["schema"]
    body = {
        "schema": 1,
        "generation": 1,
        "created": "2026-01-01T00:00:00+00:00",
        "release": content_id(released),
        "releases": {content_id(released): {"id": content_id(released), "bytes": 2, "files": released}},
        "shards": {"old": {"id": content_id(files), **described, "bytes": size, "files": files}},
    }
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (root / "manifest.json").write_text(json.dumps({**body, "checksum": checksum}))
    return (root / "shards" / content_id(files) / "vectors.faiss").read_bytes()


def test_schema_1_library_is_read_and_extended(store: ShardStore, publish_task: Callable) -> None:
    vectors, ids = _unrounded(20, DIM, seed=5), np.arange(0, 40, 2)
    before = _write_schema_1(store.root, vectors, ids)
    for tasks in (["old"], ["old", "new"]):
        snapshot = IndexSnapshot.open(store)
        assert (snapshot.tasks, snapshot.degraded) == (tasks, {})
        old = snapshot.shard("old", fingerprint="encoder of old")
        assert old.entry.dtype == "float32"
        assert (old.vectors(ids) == vectors).all()  # not rounded
        for query in _unrounded(3, DIM, seed=6):
            assert old.search(query, 5).ids.tolist() == ids[np.argsort(-(vectors @ query))[:5]].tolist()
        if tasks == ["old"]:
            publish_task(store, "new", [1, 3, 5])
    assert (store.shard_folder(snapshot.manifest.shards["old"].id) / "vectors.faiss").read_bytes() == before
    assert snapshot.manifest.shards["new"].dtype == "float16"
    assert json.loads(store.manifest_path.read_text())["schema"] == 2
