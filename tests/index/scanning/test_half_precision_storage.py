"""Storage in half precision with scores in single precision."""

from __future__ import annotations

import numpy as np
import pytest

from index.files.manifest_format import SegmentEntry
from index.scanning.segment import Segment
from index.shard_store import ShardStore


def _open(store: ShardStore, entry: SegmentEntry) -> Segment:
    return Segment.open(store.shard_folder(entry.id), entry)


def _unrounded(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _brute_force(stored: np.ndarray, query: np.ndarray) -> list[float]:
    """Compute the inner products with rounded rows, in double precision."""
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
    # A scan with a different order of summation in some rows would not order these by ID.
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
