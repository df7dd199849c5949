"""ANN structures of large segments: the recall gate, and searches."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from index.errors import ShardCorrupt
from index.files.manifest_format import AnnStructure, Manifest, SegmentEntry
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.scanning.ann_index import (
    DEPTH,
    GATE_DEPTHS,
    AnnIndex,
    GateResult,
    build_ann,
    choose_structure,
    measure_recall,
    open_ann,
)
from index.scanning.exact_scan import ExactScan, empty_flat_index
from index.shard_store import ShardStore
from index.shards.faiss_vector_store import FaissShard, Segment
from index.store_options import ANN_KINDS, AnnPolicy

DIM, ROWS = 12, 12_000


def _clustered(count: int, seed: int) -> np.ndarray:
    """Draw unit vectors around 150 centers, with numbers that half precision represents exactly."""
    centers = np.random.default_rng(0).normal(size=(150, DIM))
    dice = np.random.default_rng(seed)
    vectors = centers[dice.integers(0, 150, count)] + 0.25 * dice.normal(size=(count, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float16).astype(np.float32)


def _text_like(count: int, seed: int) -> np.ndarray:
    """Draw unit vectors far from every center, as texts are from videos."""
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)) + np.full(DIM, 2.5)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VIDEOS, TEXTS = _clustered(ROWS, 1), _clustered(150, 2)
IDS = np.arange(ROWS) * 3 + 5


@pytest.fixture(scope="module", params=ANN_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def large(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[ShardStore, SegmentEntry]:
    """A store with one published shard that has a structure."""
    policy = AnnPolicy(exact_rows=1000, kinds=(kind,))
    store = ShardStore(tmp_path_factory.mktemp(kind) / "index", policy=policy)
    staged = store.stage()
    (staged / "release.json").write_text("{}")
    release = store.adopt_release(staged)
    entry = _write(store, VIDEOS, release=release.id, ids=IDS)
    store.publish(release=release, shards=[entry])
    return store, entry


def _write(store: ShardStore, vectors: np.ndarray, **fields: Any) -> SegmentEntry:
    fields = {"release": "r", "queries": TEXTS, "ids": np.arange(len(vectors)), **fields}
    return store.write_shard(task="t", fingerprint="f", vectors=vectors, **fields)


def _shard(store: ShardStore, deleted: np.ndarray | None = None) -> FaissShard:
    entry = store.manifest().shards["t"]
    gone = np.empty(0, np.int64) if deleted is None else deleted
    return FaissShard([(store.shard_folder(entry.id), entry)], gone, store.segment_cache)


@cache
def _ranking(query: bytes) -> np.ndarray:
    scores = (VIDEOS.astype(np.float64) * np.frombuffer(query, np.float32)).sum(axis=1)
    return np.lexsort((np.arange(ROWS), -scores))


def _brute_force(query: np.ndarray) -> np.ndarray:
    """Rank the rows, best first, by products in double precision."""
    return _ranking(query.tobytes())


def test_gate_reports_measured_recall(kind: str, large: tuple[ShardStore, SegmentEntry]) -> None:
    structure = large[1].structure
    assert structure is not None
    assert (structure.kind, structure.queries, structure.rows) == (kind, 150, ROWS)
    assert 0 < structure.work <= 0.5
    shard = _shard(large[0])
    recalls = []
    for depth in GATE_DEPTHS:
        matches = 0
        for query in TEXTS:
            matches += len({*shard.search(query, depth).ids} & {*IDS[_brute_force(query)[:depth]]})
        recalls.append(matches / depth / len(TEXTS))
    assert min(recalls) == pytest.approx(structure.recall, abs=2e-4)  # ties count as correct
    assert structure.recall >= structure.target == 0.99


def test_ann_search_returns_exact_scores(large: tuple[ShardStore, SegmentEntry]) -> None:
    shard = _shard(large[0])
    for query in _clustered(5, 3):
        hits = shard.search(query, 20)
        scores = (shard.vectors(hits.ids).astype(np.float64) * query).sum(axis=1)
        np.testing.assert_allclose(hits.scores, scores, atol=1e-6)
        assert (np.lexsort((hits.ids, -hits.scores)) == np.arange(20)).all()
        many = shard.search_many(np.stack([query] * 9), 20)
        assert all((one.ids == hits.ids).all() and (one.scores == hits.scores).all() for one in many)


def test_longer_results_begin_with_shorter_ones(large: tuple[ShardStore, SegmentEntry]) -> None:
    shard, among = _shard(large[0]), IDS[np.random.default_rng(8).random(ROWS) < 0.8]
    for query in _text_like(5, 9):
        for passing in (None, among):
            longest = shard.search(query, 60, include=passing).ids.tolist()
            for k in (1, 11, 59):
                assert shard.search(query, k, include=passing).ids.tolist() == longest[:k]


def test_search_that_no_structure_covers_is_exact(large: tuple[ShardStore, SegmentEntry]) -> None:
    """Beyond the measured depth, and among the farthest half of the videos only."""
    shard = _shard(large[0])
    for query in (*_text_like(3, 4), *_clustered(3, 6)):
        order = _brute_force(query)
        assert shard.search(query, 150).ids.tolist() == IDS[order[:150]].tolist()
        farthest = order[ROWS // 2 :]
        hits = shard.search(query, 10, include=IDS[np.sort(farthest)])
        assert hits.ids.tolist() == IDS[farthest[:10]].tolist()


@pytest.mark.parametrize("share", [0.9, 0.5, 0.01])
def test_filtered_ann_search_keeps_recall_and_excludes_ids(
    large: tuple[ShardStore, SegmentEntry], share: float
) -> None:
    dice = np.random.default_rng(5)
    among = IDS[dice.random(ROWS) < share]
    deleted = np.sort(dice.permutation(IDS)[:500])
    shard = _shard(large[0], deleted)
    matches = 0
    for query in TEXTS[:60]:
        hits = shard.search(query, 10, include=among)
        assert len(hits.ids) == 10
        assert np.isin(hits.ids, among).all()
        assert not np.isin(hits.ids, deleted).any()
        order = IDS[_brute_force(query)]
        best = order[np.isin(order, among) & ~np.isin(order, deleted)][:10]
        matches += len({*hits.ids} & {*best})
    assert matches / 600 >= 0.985


def test_ann_ties_are_ordered_by_id(kind: str, store: ShardStore) -> None:
    vectors = VIDEOS[:3000].copy()
    vectors[500:560] = vectors[77]
    store.policy = AnnPolicy(exact_rows=1000, kinds=(kind,), target=0.9)
    entry = _write(store, vectors)
    assert entry.structure is not None
    assert entry.structure.kind == kind
    (hits,) = Segment.open(store.shard_folder(entry.id), entry).search_many(vectors[77:78], 9)
    assert hits.ids.tolist() == [77, *range(500, 508)]


def test_garbage_collection_keeps_segment_while_structure_is_built(store: ShardStore) -> None:
    store.policy = AnnPolicy(exact_rows=1000, kinds=("sq8",), target=0.9)

    def heartbeat() -> None:
        store.collect_garbage()
        (staged,) = store.folders()
        os.utime(staged, (0, 0))  # as if an hour passed until the next call

    assert _write(store, VIDEOS[:3000], heartbeat=heartbeat).structure is not None


def _exact(vectors: np.ndarray) -> ExactScan:
    flat = empty_flat_index(vectors.shape[1])
    flat.add(vectors)
    return ExactScan(flat)


@pytest.mark.parametrize(
    ("kinds", "passing", "refused"),
    [(["ivf"], "flat", ["ivf"]), (["sq8"], "sq8", []), (ANN_KINDS, "sq8", ["ivf"])],
)
def test_gate_takes_first_kind_with_enough_text_recall(
    kinds: Sequence[str], passing: str, refused: list[str]
) -> None:
    # Unclustered vectors in 64 dimensions and distant queries: half of the work of ivf does not reach the recall. The
    # error of 8-bit codes does not depend on the direction.
    dice = np.random.default_rng(7)
    vectors = dice.normal(size=(4000, 64)).astype(np.float32)
    exact = _exact(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    texts = (dice.normal(size=(120, 64)) + 3).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    result = choose_structure(exact, texts, AnnPolicy(exact_rows=1000, kinds=tuple(kinds)))
    assert result is not None
    assert (result.structure.kind, list(result.structure.refused)) == (passing, refused)
    assert (result.index is None) == (passing == "flat")
    assert all(recall < 0.99 for recall in result.structure.refused.values())


def test_gate_keeps_smallest_passing_parameter(kind: str) -> None:
    exact = _exact(VIDEOS)
    result = choose_structure(exact, TEXTS, AnnPolicy(exact_rows=1000, kinds=(kind,)))
    assert result is not None
    smallest = result.structure.parameter
    if smallest > 1:
        cuts = [np.array([exact.search(query, depth)[1][-1] for query in TEXTS]) for depth in GATE_DEPTHS]
        candidates = AnnIndex(kind, result.index, exact)
        assert measure_recall(candidates, TEXTS, cuts, smallest) >= 0.99
        assert measure_recall(candidates, TEXTS, cuts, smallest - 1) < 0.99


@pytest.mark.parametrize("queries", [None, TEXTS[:99]])
def test_no_structure_without_enough_queries(store: ShardStore, queries: np.ndarray | None) -> None:
    store.policy = AnnPolicy(exact_rows=1000)
    entry = _write(store, VIDEOS[:2000], queries=queries)
    assert entry.structure is None
    assert sorted(entry.files) == ["ids.npy", "shard.json", "vectors.faiss"]


def test_structure_is_recorded_in_manifest_and_description(
    kind: str, large: tuple[ShardStore, SegmentEntry]
) -> None:
    store, entry = large
    assert entry.structure is not None
    text = json.loads(store.manifest_path.read_text())
    assert text["shards"]["t"]["structure"] == asdict(entry.structure)
    assert Manifest.loads(store.manifest_path.read_text()).shards["t"] == entry
    described = json.loads((store.shard_folder(entry.id) / "shard.json").read_text())
    assert described["structure"]["kind"] == kind
    assert {"search.faiss", "queries.npy"} < described["files"].keys()
    assert (np.load(store.shard_folder(entry.id) / "queries.npy") == TEXTS).all()
    assert audit(store).problems == []


def test_altered_structure_degrades_shard(large: tuple[ShardStore, SegmentEntry]) -> None:
    store, entry = large
    path = store.shard_folder(entry.id) / "search.faiss"
    whole = path.read_bytes()
    for offset in (40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        why = f"segment {entry.id[:12]} of task t: search.faiss was altered; restore it from a backup"
        assert IndexSnapshot.open(store).degraded == {"t": why}
        assert audit(store).damaged_shards == {"t": why}
        assert audit(store).problems == [why]
    path.write_bytes(whole)
    assert IndexSnapshot.open(store).degraded == {}


def test_structure_of_other_vectors_raises(
    kind: str, large: tuple[ShardStore, SegmentEntry], tmp_path: Path
) -> None:
    store, entry = large
    exact = _exact(VIDEOS[:5000])
    faiss.write_index(build_ann(kind, exact), str(tmp_path / "search.faiss"))
    with pytest.raises(ValueError, match=f"it is not the {kind} structure of {ROWS} vectors"):
        open_ann(tmp_path / "search.faiss", kind, _exact(VIDEOS))
    assert entry.structure is not None
    lying = replace(entry, structure=replace(entry.structure, recall=1.0))
    with pytest.raises(ShardCorrupt, match=r"shard\.json contradicts the manifest"):
        Segment.open(store.shard_folder(entry.id), lying)


def test_graph_of_version_1_0_0_is_not_searched(
    store: ShardStore, adopt: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = faiss.IndexHNSWFlat(DIM, 4, faiss.METRIC_INNER_PRODUCT)
    graph.add(VIDEOS[:3000])
    structure = AnnStructure("hnsw", 101, 0.995, 0.99, DEPTH, len(TEXTS), 3000, 0.1, {"ivf": 0.9})
    gate = GateResult(structure, graph, TEXTS)
    store.policy, release = AnnPolicy(exact_rows=1000, target=0.9), adopt(store, "r")
    with monkeypatch.context() as patch:
        patch.setattr("index.shards.faiss_vector_store.choose_structure", lambda *_: gate)
        entry = _write(store, VIDEOS[:3000], release=release.id, ids=IDS[:3000])
    store.publish(release=release, shards=[entry])
    for query in TEXTS[:20]:
        order = _brute_force(query)
        assert _shard(store).search(query, 50).ids.tolist() == IDS[order[order < 3000][:50]].tolist()
    assert audit(store).problems == []
    store.delete([5])
    compacted = store.compact("t").shards["t"].structure
    assert compacted is not None
    assert compacted.kind in ANN_KINDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "later"),
    [("ivf", None), ("ivf", TEXTS), ("sq8", TEXTS)],
    ids=["ivf", "ivf of both segments", "sq8 of both segments"],
)
def test_compaction_measures_again_with_stored_queries(
    kind: str, later: np.ndarray | None, tmp_path: Path, adopt: Callable
) -> None:
    store = ShardStore(tmp_path / "index", policy=AnnPolicy(exact_rows=1000, kinds=(kind,)))
    release = adopt(store, "r")

    first = _write(store, VIDEOS[:4000], release=release.id, ids=IDS[:4000])
    store.publish(release=release, shards=[first])
    store.append(_write(store, VIDEOS[4000:], release=release.id, ids=IDS[4000:], queries=later))
    store.delete(IDS[:100].tolist())
    compacted = store.compact("t").shards["t"].structure
    assert compacted is not None
    assert (compacted.kind, compacted.rows, compacted.queries) == (kind, ROWS - 100, len(TEXTS))
    assert compacted.recall >= 0.99
    assert audit(store).problems == []


def test_heartbeat_runs_during_build_and_may_abort_it(kind: str, store: ShardStore) -> None:
    store.policy = AnnPolicy(exact_rows=1000, kinds=(kind,))
    heard: list[int] = []

    def heartbeat() -> None:
        heard.append(len(heard))
        if len(heard) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        _write(store, VIDEOS, heartbeat=heartbeat)
    assert heard == [0, 1]
    assert store.folders() == []
