"""Repair of segments whose ANN structure is damaged: the same vectors, and a structure that is measured again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.errors import ShardCorrupt, ShardInvalid
from index.files.manifest_format import SegmentEntry
from index.files.segment_files import QUERIES, STRUCTURE, VECTORS
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.scanning.search_options import AnnPolicy
from index.shard_store import ShardStore
from index.structure_repair import rebuild_structure

ROWS, DIM = 3000, 12


def _unit(count: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float16).astype(np.float32)


@pytest.fixture
def appended(tmp_path: Path) -> tuple[ShardStore, SegmentEntry]:
    """A store whose task has a small first segment and a large appended one with a structure."""
    store = ShardStore(tmp_path / "index", policy=AnnPolicy(exact_rows=1000, kinds=("sq8",)))
    staged = store.stage()
    (staged / "release.json").write_text("{}")
    release = store.adopt_release(staged)
    common = {"task": "t", "release": release.id, "fingerprint": "f"}
    first = store.write_shard(**common, ids=np.arange(10), vectors=_unit(10, 1))
    store.publish(release=release, shards=[first])
    large = store.write_shard(
        **common, ids=np.arange(10, 10 + ROWS), vectors=_unit(ROWS, 2), queries=_unit(150, 3)
    )
    assert large.structure is not None
    assert large.structure.kind == "sq8"
    store.append(large)
    return store, large


def _hits(store: ShardStore) -> list[tuple[list[int], list[float]]]:
    shard = IndexSnapshot.open(ShardStore(store.root)).shard("t", fingerprint="f")
    hits = [shard.search(query, 10) for query in _unit(20, 4)]
    return [(found.ids.tolist(), found.scores.tolist()) for found in hits]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damaged", [(STRUCTURE,), (QUERIES,), (STRUCTURE, QUERIES)])
def test_structure_is_made_again_from_the_vectors(
    appended: tuple[ShardStore, SegmentEntry], damaged: tuple[str, ...]
) -> None:
    store, segment = appended
    before = _hits(store)
    for name in damaged:
        _flip(store.shard_folder(segment.id) / name)
    assert audit(store).problems
    manifest = rebuild_structure(store, segment)
    first, rebuilt = manifest.segments("t")
    assert first.count == 10
    assert (rebuilt.count, rebuilt.first_id, rebuilt.last_id) == (ROWS, 10, 9 + ROWS)
    assert rebuilt.files[VECTORS] == segment.files[VECTORS], "vectors are copied bit by bit"
    assert (rebuilt.structure is not None) == (QUERIES not in damaged)
    assert audit(store).problems == []
    assert _hits(store) == before


def test_damaged_vectors_are_not_copied(appended: tuple[ShardStore, SegmentEntry]) -> None:
    store, segment = appended
    _flip(store.shard_folder(segment.id) / VECTORS)
    generation = store.manifest().generation
    with pytest.raises(ShardCorrupt, match=VECTORS):
        rebuild_structure(store, segment)
    assert store.manifest().generation == generation


def test_replaced_segment_is_refused(appended: tuple[ShardStore, SegmentEntry]) -> None:
    store, segment = appended
    store.compact("t")
    with pytest.raises(ShardInvalid, match="not published"):
        rebuild_structure(store, segment)
