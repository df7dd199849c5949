"""Large shards: a structure is used only where text queries find through it what exact search finds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from index.errors import ShardCorrupt
from index.files.manifest_format import Manifest, SegmentEntry
from index.index_snapshot import IndexSnapshot
from index.integrity_audit import audit
from index.scanning.ann_index import (
    DEPTH,
    AnnIndex,
    build_ann,
    open_ann,
    write_ann,
)
from index.scanning.exact_scan import ExactScan, empty_flat_index
from index.scanning.recall_gate import GATE_DEPTHS, choose_structure, measure_recall
from index.scanning.search_options import AnnPolicy
from index.scanning.segment import Segment
from index.shard_store import ShardStore
from index.shards.faiss_shard import FaissShard

DIM, ROWS = 12, 12_000
ANN_KINDS = ("ivf", "hnsw", "sq8")


def _clustered(count: int, seed: int) -> np.ndarray:
    """Unit vectors around 150 centres, of numbers that half precision holds."""
    centres = np.random.default_rng(0).normal(size=(150, DIM))
    dice = np.random.default_rng(seed)
    vectors = centres[dice.integers(0, 150, count)] + 0.25 * dice.normal(size=(count, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float16).astype(np.float32)


def _elsewhere(count: int, seed: int) -> np.ndarray:
    """Unit vectors far from every centre, as texts are from videos."""
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)) + np.full(DIM, 2.5)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


VIDEOS, TEXTS = _clustered(ROWS, 1), _clustered(150, 2)
IDS = np.arange(ROWS) * 3 + 5


@pytest.fixture(scope="module", params=ANN_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def large(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[ShardStore, SegmentEntry]:
    """A store with one published shard that is searched through a structure."""
    policy = AnnPolicy(exact_rows=1000, kinds=(kind,))
    store = ShardStore(tmp_path_factory.mktemp(kind) / "index", policy=policy)
    staged = store.stage()
    (staged / "release.json").write_text("{}")
    release = store.adopt_release(staged)
    entry = store.write_shard(
        task="t", release=release.id, fingerprint="f", ids=IDS, vectors=VIDEOS, queries=TEXTS
    )
    store.publish(release=release, shards=[entry])
    return store, entry


def _shard(store: ShardStore, deleted: np.ndarray | None = None) -> FaissShard:
    entry = store.manifest().shards["t"]
    gone = np.empty(0, np.int64) if deleted is None else deleted
    return FaissShard([(store.shard_folder(entry.id), entry)], gone, store.segment_cache)


@cache
def _ranking(query: bytes) -> np.ndarray:
    scores = (VIDEOS.astype(np.float64) * np.frombuffer(query, np.float32)).sum(axis=1)
    return np.lexsort((np.arange(ROWS), -scores))


def _by_hand(query: np.ndarray) -> np.ndarray:
    """Rows, best first; each product is added up on its own, in double precision."""
    return _ranking(query.tobytes())


def test_the_gate_says_what_a_loop_measures(kind: str, large: tuple[ShardStore, SegmentEntry]) -> None:
    structure = large[1].structure
    assert structure is not None
    assert (structure.kind, structure.queries, structure.rows) == (kind, 150, ROWS)
    assert 0 < structure.work <= 0.5
    shard = _shard(large[0])
    recalls = []
    for depth in GATE_DEPTHS:
        found = 0
        for query in TEXTS:
            found += len({*shard.search(query, depth).ids} & {*IDS[_by_hand(query)[:depth]]})
        recalls.append(found / depth / len(TEXTS))
    assert min(recalls) == pytest.approx(structure.recall, abs=2e-4)  # what ties is as good
    assert structure.recall >= structure.target == 0.99


def test_scores_are_those_of_the_exact_vectors(large: tuple[ShardStore, SegmentEntry]) -> None:
    shard = _shard(large[0])
    for query in _clustered(5, 3):
        hits = shard.search(query, 20)
        scores = (shard.vectors(hits.ids).astype(np.float64) * query).sum(axis=1)
        np.testing.assert_allclose(hits.scores, scores, atol=1e-6)
        assert (np.lexsort((hits.ids, -hits.scores)) == np.arange(20)).all()
        many = shard.search_many(np.stack([query] * 9), 20)
        assert all((one.ids == hits.ids).all() and (one.scores == hits.scores).all() for one in many)


def test_a_longer_list_begins_with_every_shorter_one(large: tuple[ShardStore, SegmentEntry]) -> None:
    shard, among = _shard(large[0]), IDS[np.random.default_rng(8).random(ROWS) < 0.8]
    for query in _elsewhere(5, 9):
        for passing in (None, among):
            longest = shard.search(query, 60, include=passing).ids.tolist()
            assert all(
                shard.search(query, k, include=passing).ids.tolist() == longest[:k] for k in (1, 11, 59)
            )


def test_deeper_than_it_was_measured_is_exact(large: tuple[ShardStore, SegmentEntry]) -> None:
    shard = _shard(large[0])
    for query in _elsewhere(3, 4):
        hits = shard.search(query, 150)
        assert hits.ids.tolist() == IDS[_by_hand(query)[:150]].tolist()


@pytest.mark.parametrize("share", [0.9, 0.5, 0.01])
def test_what_is_filtered_out_is_not_found_and_the_rest_is(
    large: tuple[ShardStore, SegmentEntry], share: float
) -> None:
    dice = np.random.default_rng(5)
    among = IDS[dice.random(ROWS) < share]
    deleted = np.sort(dice.permutation(IDS)[:500])
    shard = _shard(large[0], deleted)
    found = 0
    for query in TEXTS[:60]:
        hits = shard.search(query, 10, include=among)
        assert len(hits.ids) == 10
        assert np.isin(hits.ids, among).all()
        assert not np.isin(hits.ids, deleted).any()
        order = IDS[_by_hand(query)]
        best = order[np.isin(order, among) & ~np.isin(order, deleted)][:10]
        found += len({*hits.ids} & {*best})
    assert found / 600 >= 0.985


def test_a_filter_against_the_query_is_answered_exactly(large: tuple[ShardStore, SegmentEntry]) -> None:
    # Only the half of the videos that is farthest away may be found: no structure would have looked there.
    shard = _shard(large[0])
    for query in _clustered(3, 6):
        farthest = _by_hand(query)[ROWS // 2 :]
        hits = shard.search(query, 10, include=IDS[np.sort(farthest)])
        assert hits.ids.tolist() == IDS[farthest[:10]].tolist()


def test_ties_are_ordered_by_id_where_the_list_is_cut(kind: str, store: ShardStore) -> None:
    vectors = VIDEOS[:3000].copy()
    vectors[500:560] = vectors[77]
    store.policy = AnnPolicy(exact_rows=1000, kinds=(kind,), target=0.9)
    entry = store.write_shard(
        task="t", release="r", fingerprint="f", ids=np.arange(3000), vectors=vectors, queries=TEXTS
    )
    assert entry.structure is not None
    if kind != "hnsw":  # a graph whose nodes are all the same vector may leave some out
        assert entry.structure.kind == kind
        (hits,) = Segment.open(store.shard_folder(entry.id), entry).search_many(vectors[77:78], 9)
        assert hits.ids.tolist() == [77, *range(500, 508)]


def test_a_sweep_spares_a_shard_whose_structure_takes_hours(store: ShardStore) -> None:
    store.policy = AnnPolicy(exact_rows=1000, kinds=("sq8",), target=0.9)

    def heartbeat() -> None:
        store.collect_garbage()
        (staged,) = store.folders()
        os.utime(staged, (0, 0))  # the time until it is called again

    entry = store.write_shard(
        task="t",
        release="r",
        fingerprint="f",
        ids=np.arange(3000),
        vectors=VIDEOS[:3000],
        queries=TEXTS,
        heartbeat=heartbeat,
    )
    assert entry.structure is not None


def _exact(vectors: np.ndarray) -> ExactScan:
    flat = empty_flat_index(vectors.shape[1], "float16")
    flat.add(vectors)
    return ExactScan(flat)


def test_the_gate_refuses_what_texts_are_not_found_through(kind: str) -> None:
    # Without structure in 64 dimensions, and asked from elsewhere, nothing that reads half of it finds enough.
    dice = np.random.default_rng(7)
    vectors = dice.normal(size=(4000, 64)).astype(np.float32)
    exact = _exact(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    texts = (dice.normal(size=(120, 64)) + 3).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    measured = choose_structure(exact, texts, AnnPolicy(exact_rows=1000, kinds=(kind,)))
    assert measured is not None
    if kind == "sq8":  # eight bits lose the same in every direction
        assert measured.structure.kind == "sq8"
        return
    assert (measured.structure.kind, measured.index) == ("flat", None)
    assert list(measured.structure.refused) == [kind]
    assert measured.structure.refused[kind] < 0.99


def test_videos_would_have_passed_where_texts_do_not() -> None:
    exact, policy = _exact(VIDEOS), AnnPolicy(exact_rows=1000, kinds=("hnsw",), target=0.999)
    kinds = []
    for queries in (_clustered(120, 8), _elsewhere(120, 9)):
        measured = choose_structure(exact, queries, policy)
        assert measured is not None
        kinds.append((measured.structure.kind, measured.structure.work))
    assert kinds[0][0] == "hnsw"
    assert kinds[1][0] == "flat" or kinds[1][1] > 2 * kinds[0][1]


def test_the_smallest_parameter_that_holds_is_kept(kind: str) -> None:
    exact = _exact(VIDEOS)
    measured = choose_structure(exact, TEXTS, AnnPolicy(exact_rows=1000, kinds=(kind,)))
    assert measured is not None
    smallest = measured.structure.parameter
    if smallest > 1:
        cuts = [np.array([exact.search(query, depth).scores[-1] for query in TEXTS]) for depth in GATE_DEPTHS]
        candidates = AnnIndex(kind, measured.index, exact)
        assert measure_recall(candidates, TEXTS, cuts, smallest) >= 0.99
        if kind != "hnsw" or smallest > DEPTH + 1:
            assert measure_recall(candidates, TEXTS, cuts, smallest - 1) < 0.99


def test_the_first_kind_that_passes_is_taken_and_the_others_are_told() -> None:
    dice = np.random.default_rng(7)
    vectors = dice.normal(size=(4000, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = vectors[:120] * 0.1 + dice.normal(size=(120, 64)).astype(np.float32)
    measured = choose_structure(_exact(vectors), texts, AnnPolicy(exact_rows=1000, kinds=("ivf", "sq8")))
    assert measured is not None
    assert measured.structure.kind == "sq8"
    assert measured.structure.refused.keys() == {"ivf"}


@pytest.mark.parametrize("queries", [None, TEXTS[:99]])
def test_without_enough_queries_nothing_is_built(store: ShardStore, queries: np.ndarray | None) -> None:
    store.policy = AnnPolicy(exact_rows=1000)
    entry = store.write_shard(
        task="t", release="r", fingerprint="f", ids=np.arange(2000), vectors=VIDEOS[:2000], queries=queries
    )
    assert entry.structure is None
    assert sorted(entry.files) == ["ids.npy", "shard.json", "vectors.faiss"]


def test_a_small_shard_stays_as_older_versions_read_it(store: ShardStore, lay_down: Callable) -> None:
    manifest = lay_down(store, "t", range(20))
    text = json.loads(store.manifest_path.read_text())
    assert text["schema"] == 2
    assert "structure" not in text["shards"]["t"]
    assert "structure" not in json.loads(
        (store.shard_folder(manifest.shards["t"].id) / "shard.json").read_text()
    )


def test_what_was_measured_stands_in_manifest_and_description(
    kind: str, large: tuple[ShardStore, SegmentEntry]
) -> None:
    store, entry = large
    assert entry.structure is not None
    text = json.loads(store.manifest_path.read_text())
    assert text["schema"] == 3
    assert text["shards"]["t"]["structure"] == asdict(entry.structure)
    assert Manifest.loads(store.manifest_path.read_text()).shards["t"] == entry
    described = json.loads((store.shard_folder(entry.id) / "shard.json").read_text())
    assert (described["schema"], described["structure"]["kind"]) == (3, kind)
    assert {"search.faiss", "queries.npy"} < described["files"].keys()
    assert (np.load(store.shard_folder(entry.id) / "queries.npy") == TEXTS).all()
    assert audit(store).problems == []


def test_an_altered_structure_is_set_aside_by_name(
    large: tuple[ShardStore, SegmentEntry],
) -> None:
    store, entry = large
    path = store.shard_folder(entry.id) / "search.faiss"
    whole = path.read_bytes()
    for place in (40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        why = f"shard {entry.id[:12]} of task t: search.faiss was altered; restore it from a backup"
        assert IndexSnapshot.open(store).degraded == {"t": why}
        assert audit(store).damaged_shards == {"t": why}
        assert audit(store).problems == [why]
    path.write_bytes(whole)
    assert IndexSnapshot.open(store).degraded == {}


def test_a_structure_of_other_vectors_is_refused(
    kind: str, large: tuple[ShardStore, SegmentEntry], tmp_path: Path
) -> None:
    store, entry = large
    exact = _exact(VIDEOS[:5000])
    with (tmp_path / "search.faiss").open("wb") as file:
        write_ann(kind, build_ann(kind, exact), file.write)
    with pytest.raises(ValueError, match=f"it is no {kind} of {ROWS} vectors"):
        open_ann(tmp_path / "search.faiss", kind, _exact(VIDEOS))
    assert entry.structure is not None
    lying = replace(entry, structure=replace(entry.structure, recall=1.0))
    with pytest.raises(ShardCorrupt, match=r"shard\.json contradicts the manifest"):
        Segment.open(store.shard_folder(entry.id), lying)


@pytest.mark.parametrize("later", [None, TEXTS], ids=["first segment", "both segments"])
def test_compaction_measures_again_with_the_queries_that_it_kept(
    kind: str, later: np.ndarray | None, tmp_path: Path, adopt: Callable
) -> None:
    store = ShardStore(tmp_path / "index", policy=AnnPolicy(exact_rows=1000, kinds=(kind,)))
    release = adopt(store, "r")

    def write(rows: slice, queries: np.ndarray | None) -> SegmentEntry:
        return store.write_shard(
            task="t",
            release=release.id,
            fingerprint="f",
            ids=IDS[rows],
            vectors=VIDEOS[rows],
            queries=queries,
        )

    store.publish(release=release, shards=[write(slice(0, 4000), TEXTS)])
    store.append(write(slice(4000, ROWS), later))
    store.delete(IDS[:100].tolist())
    compacted = store.compact("t").shards["t"].structure
    assert compacted is not None
    assert (compacted.kind, compacted.rows, compacted.queries) == (kind, ROWS - 100, len(TEXTS))
    assert compacted.recall >= 0.99
    assert audit(store).problems == []


def test_who_waits_hears_of_the_work_and_may_stop_it(kind: str, store: ShardStore) -> None:
    store.policy = AnnPolicy(exact_rows=1000, kinds=(kind,))
    heard: list[int] = []

    def heartbeat() -> None:
        heard.append(len(heard))
        if len(heard) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        store.write_shard(
            task="t",
            release="r",
            fingerprint="f",
            ids=IDS,
            vectors=VIDEOS,
            queries=TEXTS,
            heartbeat=heartbeat,
        )
    assert heard == [0, 1]
    assert store.folders() == []
