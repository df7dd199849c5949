"""Scans of shards: each video once, with its best score and its best moments; and scans in parallel."""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.arrays import Hits, Ids, is_moment, moment_ids, video_ids_of
from index.shards.faiss_vector_store import FaissShard
from index.words.word_index import TextKind, VideoText, WordIndex
from service.search.engine import SearchEngine
from service.search.library_words import DomainCaptions
from service.search.snapshots import search_snapshot
from service.search.snapshots.search_snapshot import (
    ShardScan,
    best_per_video,
    drop_moments,
    nearest_videos,
    search_in_parallel,
)
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, Served

# -- grouping, compared with a loop -------------------------------------------------------------------------


@st.composite
def _shards(draw: st.DrawFn) -> Hits:
    """Return hits for all of a shard's vectors, with so few distinct scores that many are equal."""
    ids: list[int] = []
    for video in draw(st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=8)):
        ids += [video, *moment_ids(video, draw(st.integers(0, 6))).tolist()]
    scores = draw(st.lists(st.integers(-3, 3), min_size=len(ids), max_size=len(ids)))
    return Hits(np.array(ids, np.int64), np.array(scores, np.float32) / 4)


def _slow(hits: Hits, wanted: Callable[[int], bool]) -> list[tuple[int, float]]:
    best: dict[int, float] = {}
    for vector_id, score in zip(hits.ids.tolist(), hits.scores.tolist(), strict=True):
        if wanted(vector_id):
            video = vector_id if vector_id < 2**62 else (vector_id - 2**62) // 2**16
            best[video] = max(best.get(video, -math.inf), score)
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))


@given(
    everything=_shards(), orders=st.lists(st.randoms(use_true_random=False), max_size=4), k=st.integers(1, 10)
)
def test_nearest_videos_equal_those_of_all_hits(
    everything: Hits, orders: list[random.Random], k: int
) -> None:
    """For several queries at once, some of which need a greater depth than others."""
    scores = [everything.scores]
    for order in orders:
        again = everything.scores.tolist()
        order.shuffle(again)
        scores.append(np.array(again, np.float32))
    rankings = [Hits(everything.ids, row) for row in scores]
    depths: dict[int, list[int]] = {}

    def search(rows: np.ndarray, depth: int) -> list[Hits]:
        depths[depth] = rows.tolist()
        ranked = [
            (rankings[row], np.lexsort((rankings[row].ids, -rankings[row].scores))[:depth]) for row in rows
        ]
        return [Hits(hits.ids[best], hits.scores[best]) for hits, best in ranked]

    for reduced, wanted in ((best_per_video, lambda _: True), (drop_moments, lambda i: i < 2**62)):
        hits_found = nearest_videos(search, len(rankings), k, reduced)
        for hits, actual in zip(rankings, hits_found, strict=True):
            assert (
                list(zip(actual.ids.tolist(), actual.scores.tolist(), strict=True)) == _slow(hits, wanted)[:k]
            )
            assert actual.scores.dtype == np.float32
    assert max(depths) <= 4 * max(4 * k, len(everything.ids)), "the depth is bounded by the size of the shard"
    assert depths[4 * k] == list(range(len(rankings))), "all queries share the first fetch"


# -- a library with long videos -----------------------------------------------------------------------------

VIDEOS = {
    "birds": [*BIRDS, "a long day at the lake"],
    "cars": [*CARS, "a drive through the city"],
    "sea": SEA,
}
SEEN = {
    "birds": {
        1: ["a crow eats", "an egret fishes", "an egret fishes again"],
        3: [
            "a boat lies in the reeds",
            "a heron stands in shallow water",
            "rain falls",
            "an owl sleeps",
            "fog",
        ],
    },
    "cars": {3: [f"a bus number {n} turns left at the light" for n in range(40)]},
}


def learn(library: Library) -> None:
    for name, captions in VIDEOS.items():
        facts = [{"extra": {"number": n}, "duration": 60.0 - n} for n in range(len(captions))]
        library.add_task(name, captions, facts=facts, moments=SEEN.get(name, {}))


@pytest.fixture
def service(shared: Served) -> SearchEngine:
    return shared[1]


def test_best_moment_is_listed_first(service: SearchEngine) -> None:
    answer = service.search("a heron stands in shallow water", k=2, task="birds")
    assert {result.video_id for result in answer.results} == {"birds-0", "birds-3"}
    lake = next(result for result in answer.results if result.video_id == "birds-3")
    assert (lake.moments[0].start, lake.moments[0].end) == (10, 30)
    assert lake.moments[0].score == lake.score


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 11])
def test_k_videos_are_returned_despite_one_with_forty_better_moments(service: SearchEngine, k: int) -> None:
    text = "a bus number 7 turns left at the light"
    whole = service.search(text, k=100).results
    assert len(whole) == 11
    assert "cars-3" in [result.video_id for result in whole[:3]]
    answer = service.search(text, k=k)
    assert [result.model_dump() for result in answer.results] == [result.model_dump() for result in whole[:k]]
    assert (answer.next_cursor is None) == (k == 11)


@pytest.mark.parametrize(
    "parameters", [{}, {"min_score": 0.3}, {"task": "cars"}, {"where": {"number": {"max": 3}}}], ids=str
)
def test_pages_with_moments_equal_one_long_list(service: SearchEngine, parameters: dict[str, Any]) -> None:
    text = "a bus number 7 turns left at the light"
    whole = service.search(text, k=100, routes="all", **parameters)
    listed, cursor = [], None
    while True:
        answer = service.search(text, k=2, routes="all", cursor=cursor, **parameters)
        listed += answer.results
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert listed == whole.results
    least = parameters.get("min_score", -math.inf)
    assert [r.video_id for r in listed if r.score >= least] == [r.video_id for r in listed]


def test_scan_groups_the_hits_of_each_search_separately(service: SearchEngine) -> None:
    """Text searches use moments and clip searches do not; one scan of a shard may serve both."""
    snapshot = service.snapshots.current()
    (vector,) = snapshot.query_vectors([("a bus number 7 turns left at the light", "pinned", "tsk_cars")])
    shard = snapshot.shards["tsk_cars"]
    everything = Hits(shard.ids, shard.vectors(shard.ids) @ vector)
    whole = [video for video, _ in _slow(everything, lambda i: i < 2**62)]
    among = np.array(sorted(whole)[:2], np.int64)
    hits_found = snapshot.scan(
        [
            ShardScan("tsk_cars", vector, 3, None, drop_moments),
            ShardScan("tsk_cars", vector, 3, None),
            ShardScan("tsk_cars", vector, 3, among, drop_moments),
        ]
    )
    expected = [_slow(everything, wanted) for wanted in (lambda i: i < 2**62, lambda _: True)]
    expected.append(_slow(everything, lambda i: i in among))
    for hits, reference in zip(hits_found, expected, strict=True):
        assert hits.ids.tolist() == [video for video, _ in reference[:3]]
        assert hits.scores == pytest.approx([score for _, score in reference[:3]], abs=1e-5)
    assert expected[0] != expected[1]


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("task", ["tsk_cars", "tsk_sea"])
@pytest.mark.parametrize("k", [1, 2, 4])
@given(is_captioned=st.lists(st.booleans(), min_size=4, max_size=4).filter(lambda each: not all(each[:3])))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scan_of_all_videos_finds_the_nearest_without_captions(
    shared: Served,
    monkeypatch: pytest.MonkeyPatch,
    k: int,
    task: str,
    is_remote: bool,
    is_captioned: list[bool],
) -> None:
    """Also where forty moments of one video are nearer than all others; a remote store is sent no IDs."""
    searched: list[Ids | None] = []
    search_many = FaissShard.search_many

    def record(self: FaissShard, queries: np.ndarray, depth: int, *rest: Any) -> list[Hits]:
        searched.append(rest[1])
        return search_many(self, queries, depth, *rest)

    monkeypatch.setattr(FaissShard, "search_many", record)
    monkeypatch.setattr(FaissShard, "is_remote", is_remote)
    monkeypatch.setattr(search_snapshot, "_ANN_HITS", 1)
    snapshot = shared[1].snapshots.current()
    texts = ["a bus number 7 turns left at the light", "a whale"]
    queries = snapshot.query_vectors([(text, "pinned", task) for text in texts])
    shard = snapshot.shards[task]
    videos = np.unique(video_ids_of(shard.ids))
    captioned = [video for video, has_one in zip(videos.tolist(), is_captioned, strict=False) if has_one]
    words = WordIndex.empty().replace([(video, [VideoText(TextKind.CAPTION, "a")]) for video in captioned])
    captions = DomainCaptions(words, snapshot.video_tasks)

    def with_moments(ids: np.ndarray) -> np.ndarray:
        return shard.ids[np.isin(video_ids_of(shard.ids), ids)]

    scans = [ShardScan(task, query, k, captions=captions, narrow=with_moments) for query in queries]
    for query, hits in zip(queries, snapshot.scan(scans), strict=True):
        everything = Hits(shard.ids, shard.vectors(shard.ids) @ query)
        reference = _slow(everything, lambda _: True)
        without = [video for video, _ in reference if video not in captioned][:k]
        nearest = [video for video, _ in reference[:k]]
        assert hits.ids.tolist() == nearest + [video for video in without if video not in nearest]
        assert not is_remote or searched == [None] * len(searched)
        scores = dict(reference)
        assert hits.scores == pytest.approx([scores[video] for video in hits.ids.tolist()], abs=1e-5)


@pytest.mark.usefixtures("no_words")
def test_shards_without_moments_have_no_additional_cost(
    service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: dict[str, list[int]] = {}
    original = FaissShard.search_many

    def search_many(self: FaissShard, queries: np.ndarray, k: int, *rest: Any) -> list[Hits]:
        depths.setdefault(self.entry.task, []).append(k)
        return original(self, queries, k, *rest)

    monkeypatch.setattr(FaissShard, "search_many", search_many)
    for text in ("a ferry", "a boat"):
        service.search(text, k=2, routes="all", where={"number": {"max": 9}}, task=["sea"])
    assert depths == {"tsk_sea": [3, 3]}
    service.search("a ferry", k=2, routes="all")
    assert depths["tsk_sea"] == [3] * 3, "also in a search of shards with moments"


def test_filter_includes_the_moments_of_passing_videos(service: SearchEngine) -> None:
    text = "a heron stands in shallow water"
    everything = {result.video_id: result for result in service.search(text, k=100).results}
    for number in range(4):
        numbered = service.search(text, k=100, where={"number": number}).results
        assert {result.video_id for result in numbered} == {v for v in everything if v.endswith(f"-{number}")}
        for result in numbered:
            unfiltered = everything[result.video_id]
            assert (result.score, result.moments) == (unfiltered.score, unfiltered.moments)


@pytest.mark.parametrize("moments", [0, 1, 5, 100])
def test_moments_parameter_limits_the_listed_moments(service: SearchEngine, moments: int) -> None:
    full = {r.video_id: r for r in service.search("a bus", k=100, moments=100).results}
    assert [len(full[video].moments) for video in ("cars-3", "birds-3", "birds-1", "sea-0")] == [40, 5, 3, 0]
    for result in service.search("a bus", k=100, moments=moments).results:
        assert result.moments == full[result.video_id].moments[:moments]
        assert result.score == full[result.video_id].score
        assert ("#t=" in result.stream_url) == bool(result.moments)
    cursor = service.search("a bus", k=1, moments=0).next_cursor
    assert service.search("a bus", k=2, moments=moments, cursor=cursor).results[0].rank == 2


def test_similar_search_compares_whole_videos(shared: Served) -> None:
    library, service = shared
    answer = service.search_similar("cars-3", k=100)
    vectors = library.stored(VIDEOS["cars"])
    expected = sorted(((float(v @ vectors[3]), n) for n, v in enumerate(vectors[:3])), reverse=True)
    assert [result.video_id for result in answer.results] == [f"cars-{n}" for _, n in expected]
    assert [r.score for r in answer.results] == pytest.approx([s for s, _ in expected], abs=1e-5)
    assert all(result.moments == [] for result in answer.results)


def test_deletion_and_compaction_of_moments(shared: Served) -> None:
    """Runs last, because it changes the library."""
    library, service = shared
    text = "a heron stands in shallow water"
    before = service.search(text, k=100).results
    library.store.compact("tsk_birds")
    assert service.snapshots.refresh()
    assert service.search(text, k=100).results == before
    shard = service.snapshots.current().shards["tsk_birds"]
    lake = int(video_ids_of(shard.ids[is_moment(shard.ids)][-1:])[0])
    library.store.delete(moment_ids(lake, 5)[1:2])  # a single moment
    assert service.snapshots.refresh()
    after = {result.video_id: result for result in service.search(text, k=100).results}["birds-3"]
    assert 10 not in [moment.start for moment in after.moments]
    library.store.delete([lake])
    assert service.snapshots.refresh()
    assert "birds-3" not in {result.video_id for result in service.search(text, k=100).results}


# -- scans in parallel ------------------------------------------------------------------------------------------


LARGE, SMALL = 1024**3, 1024


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_results_are_in_order_of_jobs(size: int) -> None:
    assert search_in_parallel(lambda n: n * n, range(50), size) == [n * n for n in range(50)]
    assert search_in_parallel(lambda n: n, [], size) == []


def test_only_large_searches_use_other_threads() -> None:
    def where(_: int) -> int:
        return threading.get_ident()

    assert set(search_in_parallel(where, range(20), SMALL)) == {threading.get_ident()}
    cores = len(os.sched_getaffinity(0))
    met = threading.Barrier(cores)  # passes only if a search runs on each core
    assert search_in_parallel(lambda n: met.wait(timeout=5) * 0 + n, range(cores), LARGE) == [*range(cores)]


def test_small_remote_searches_run_in_parallel() -> None:
    met = threading.Barrier(5)  # passes only if all searches run at once

    def wait(number: int) -> int:
        met.wait(timeout=5)
        return number

    assert search_in_parallel(wait, range(5), 0, remote=True) == [0, 1, 2, 3, 4]


def test_search_does_not_wait_for_threads_that_others_use() -> None:
    cores = len(os.sched_getaffinity(0))
    is_over = threading.Event()
    waited: list[bool] = []

    def occupy() -> None:
        waited.extend(search_in_parallel(lambda _: is_over.wait(timeout=20), range(cores), LARGE))

    others = [threading.Thread(target=occupy) for _ in range(3)]  # more than the threads of the pool
    for other in others:
        other.start()
    assert search_in_parallel(lambda n: n, range(3), LARGE) == [0, 1, 2]
    is_over.set()
    for other in others:
        other.join()
    assert waited == [True] * 3 * cores


@pytest.mark.parametrize("size", [LARGE, SMALL])
def test_exception_of_one_search_is_raised(size: int) -> None:
    with pytest.raises(ZeroDivisionError):
        search_in_parallel(lambda n: 1 // n, [3, 0, 1], size)
