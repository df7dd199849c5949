"""Rows of results come from the copy in memory while it is current or the catalog cannot be reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime

import pytest

from cinestrata_schemas.search import SearchQuery, SearchResponse
from cinestrata_schemas.videos import FeedbackSpec, VideoPatch
from index.arrays import Hit
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.change_sequence import LATEST, following
from service.core.errors import Unavailable
from service.library.deletion import delete_videos
from service.library.video_changes import edit_video, give_feedback
from service.search import catalog_read_cache
from service.search.catalog_read_cache import CatalogReadCache, VideoRow, VideoRows
from service.search.engine import SearchEngine
from service.search.search_request import parse_requests
from service.search.text_search.answers import answer_searches
from service.search.text_search.executor import TextSearch, execute
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, copy_rows

PAUSE = threading.Event()
FACTS = [{"duration": 10.0 * n, "extra": {"place": place}} for n, place in enumerate(("lake", "sky", "tree"))]


@pytest.fixture
def cached(library: Library, service: SearchEngine) -> Iterator[SearchEngine]:
    """Engine of birds, cars and the sea, with a copy of their rows."""
    library.add_task("sea", SEA, facts=FACTS, moments={1: SEA})
    assert service.snapshots.refresh()
    snapshot = service.snapshots.current()
    assert service.read_cache.update(snapshot)
    service.read_cache.arrivals(list(snapshot.shards))
    yield service
    service.catalog_reads.close()


def _without_times(response: SearchResponse) -> SearchResponse:
    return response.model_copy(update={"timing_ms": None, "metadata_as_of": None})


def test_copy_answers_as_the_catalog_does(
    library: Library, cached: SearchEngine, lose_database: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search() -> list[SearchResponse]:
        return [
            cached.search(SEA[1], k=20),
            cached.search("something turns", k=3, task=["birds", "SEA"]),
            cached.search("waves", where={"place": {"any": ["sky", "tree"]}}, task="sea"),
            cached.search("waves", max_duration=10, routes="all", task="sea"),
            cached.search("waves", arrived_after=datetime(2000, 1, 1, tzinfo=UTC)),
        ]

    expected = search()
    assert [response.metadata_as_of for response in expected] == [None] * 5
    assert {result.video_id for result in expected[2].results} == {"sea-1", "sea-2"}
    assert expected[0].results[0].moments
    snapshot = cached.snapshots.current()
    small = CatalogReadCache(
        cached.catalog_reads, max_bytes=catalog_read_cache._read_videos("tsk_birds").nbytes
    )
    assert small.update(snapshot)
    started_later = SearchEngine(library.settings)
    assert started_later.snapshots.refresh()
    lose_database()

    answered = search()
    assert [_without_times(response) for response in answered] == [_without_times(r) for r in expected]
    assert cached.read_cache.as_of is not None
    assert {response.metadata_as_of for response in answered} == {cached.read_cache.as_of}
    assert cached.catalog_reads.is_interrupted
    with pytest.raises(Unavailable):
        cached.search("a bird", task="nowhere")

    # A copy without space for all domains names the others.
    hits = [Hit(task, int(shard.ids[0]), 0.5) for task, shard in snapshot.shards.items()]
    rows, _, not_cached = small.read_results(hits, snapshot)
    assert [row.video_id for row in rows.values()] == ["birds-0"]
    assert not_cached.keys() == {"tsk_cars", "tsk_sea"}

    # A process that starts during the outage has no copy.
    for parameters in ({}, {"min_duration": 1.0}):
        with pytest.raises(Unavailable):
            started_later.search("a bird", **parameters)
    started_later.catalog_reads.close()

    monkeypatch.undo()
    while cached.catalog_reads.is_interrupted:
        PAUSE.wait(0.01)
    assert cached.search(SEA[1]).metadata_as_of is None


def test_results_have_redacted_uris(
    library: Library, service: SearchEngine, lose_database: Callable[[], None]
) -> None:
    with session_scope(write=True) as session:
        address = "https://user:hunter2@media.example.com/taxi.mp4?token=hunter2"
        session.query(Video).filter(Video.id == "cars-0").one().uri = address
    assert service.snapshots.refresh()
    assert service.read_cache.update(service.snapshots.current())

    def uris() -> dict[str, str]:
        return {result.video_id: result.uri for result in service.search(CARS[0], k=20).results}

    expected = {f"{name}-{n}": f"{name}/{n}.mp4" for name in ("birds", "cars") for n in range(3)}
    expected["cars-0"] = "https://***@media.example.com/taxi.mp4?***"
    assert uris() == expected
    lose_database()
    assert uris() == expected
    service.catalog_reads.close()


def test_deletions_and_edits_apply_and_later_videos_are_left_out(
    library: Library, cached: SearchEngine, lose_database: Callable[[], None]
) -> None:
    with session_scope(write=True) as session:
        session.query(Video).filter(Video.id == "birds-0").one().captions = ["a grey heron"]
        session.get_one(Task, "tsk_birds").caption_edits += 1
    copy_rows(cached)
    library.add_task("night", ["a dark road"])
    cached.snapshots.refresh()
    # The last deletion before the outage; this process has not read the new manifest.
    with session_scope(write=True) as session:
        video = session.query(Video).filter(Video.id == "cars-1").one()
        library.store.delete([video.vector_id], task="tsk_cars")
        session.delete(video)
    lose_database()
    response = cached.search(CARS[1], k=20)
    names = {f"{name}-{n}" for name in ("birds", "cars", "sea") for n in range(3)}
    assert {result.video_id for result in response.results} == names - {"cars-1"}
    assert response.degraded == {}
    assert cached.search(BIRDS[0]).results[0].captions == ["a grey heron"]

    library.store.manifest_path.write_text("{")  # later deletions cannot be read
    with pytest.raises(Unavailable, match="deletions in the index can't be read"):
        cached.search(CARS[1])


@pytest.fixture
def catalog_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of rows that each read of the catalog asked for."""
    read_rows, counts = catalog_read_cache.read_rows, list[int]()

    def read(ids: Collection[int]) -> dict[int, catalog_read_cache.VideoRow]:
        counts.append(len(ids))
        return read_rows(ids)

    monkeypatch.setattr(catalog_read_cache, "read_rows", read)
    return counts


@pytest.fixture
def copied(library: Library, service: SearchEngine) -> SearchEngine:
    """Engine of birds and cars, with a current copy of their rows."""
    assert service.snapshots.refresh()
    copy_rows(service)
    return service


def _find(service: SearchEngine, text: str) -> dict[str, list[str]]:
    return {result.video_id: result.captions for result in service.search(text, k=20).results}


def test_an_edit_shows_in_the_next_search(copied: SearchEngine, catalog_reads: list[int]) -> None:
    answered = _find(copied, BIRDS[0])
    assert catalog_reads == []
    edit_video("birds-0", VideoPatch(captions=["a grey heron"]))
    edited = answered | {"birds-0": ["a grey heron"]}
    assert _find(copied, BIRDS[0]) == edited
    assert catalog_reads == [1]
    copy_rows(copied)
    assert _find(copied, BIRDS[0]) == edited
    assert catalog_reads == [1]


def test_searches_that_end_together_show_the_edits_before_each(
    copied: SearchEngine, catalog_reads: list[int]
) -> None:
    snapshot, cache = copied.snapshots.current(), copied.read_cache
    requests = parse_requests([SearchQuery(q=BIRDS[0], k=20)], copied.settings)

    def run() -> TextSearch:
        (search,) = execute(snapshot, requests, cache)
        return search

    first = run()
    edit_video("birds-0", VideoPatch(captions=["a grey heron"]))
    responses = answer_searches([first, run()])
    assert catalog_reads == [1]
    for response in responses:
        assert ["a grey heron"] in [result.captions for result in response.results]


def test_a_verdict_leaves_the_copy_as_it_is(
    copied: SearchEngine, catalog_reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_read_cache, "_read_videos", None)
    give_feedback(FeedbackSpec(text=BIRDS[0], video_id="birds-0", verdict="right"))
    assert copied.read_cache.update(copied.snapshots.current()), "at once, because no row is read"
    assert "birds-0" in _find(copied, BIRDS[0])
    assert catalog_reads == [1]


def test_a_deleted_video_is_not_shown_by_a_process_that_has_not_read_the_tombstones(
    copied: SearchEngine, catalog_reads: list[int]
) -> None:
    remaining = _find(copied, CARS[1])
    del remaining["cars-1"]
    delete_videos(["cars-1"])
    assert _find(copied, CARS[1]) == remaining
    copy_rows(copied)
    assert _find(copied, CARS[1]) == remaining
    assert catalog_reads == [], "the manifest tells which videos were deleted"
    copied.snapshots.refresh()
    copy_rows(copied)
    assert _find(copied, CARS[1]) == remaining
    assert catalog_reads == []


def test_rows_copied_with_another_version_of_the_shard_are_read_again(
    library: Library, copied: SearchEngine, catalog_reads: list[int]
) -> None:
    library.store.delete([int(copied.snapshots.current().shards["tsk_cars"].ids[1])], task="tsk_cars")
    assert copied.snapshots.refresh()
    answered = _find(copied, CARS[1])
    assert catalog_reads == [5]
    copy_rows(copied)
    assert _find(copied, CARS[1]) == answered
    assert catalog_reads == [5]


def test_a_search_waits_only_for_edits_of_its_caller(
    copied: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_video("birds-1", VideoPatch(metadata={"place": "sky"}))
    copy_rows(copied)
    answered = _find(copied, "a large albatross")
    monkeypatch.setattr(catalog_read_cache, "_POLL_SECONDS", 3600.0)  # no poll during the test
    copied.read_cache.start(copied.snapshots.loaded)
    copied.search("a bird", where={"place": "sky"})

    with following("") as own:
        edit_video("birds-0", VideoPatch(captions=["a large albatross"], metadata={"place": "lake"}))
        edit_video("cars-0", VideoPatch(metadata={"place": "lake"}))
    delete_videos(["cars-1"])
    del answered["cars-1"]
    with monkeypatch.context() as patch:
        patch.setattr(copied.catalog_reads, "read", None)  # a search of others reads nothing
        assert _find(copied, "a large albatross") == answered
        assert [r.video_id for r in copied.search("x", where={"place": "sky"}).results] == ["birds-1"]
        assert copied.suggest("large alb").suggestions == []
    with following(str(own.written)):
        assert {r.video_id for r in copied.search("x", where={"place": "lake"}).results} == {
            "birds-0",
            "cars-0",
        }
    assert _find(copied, "a large albatross") == answered | {"birds-0": ["a large albatross"]}
    assert copied.search("a large albatross").results[0].words
    assert [suggestion.text for suggestion in copied.suggest("large alb").suggestions] == ["albatross"]
    assert copied.search("a large albatross").metadata_as_of is None
    monkeypatch.setattr(catalog_read_cache, "_LATE_SECONDS", -1.0)
    assert copied.search("a large albatross").metadata_as_of == copied.read_cache.as_of

    edit_video("birds-0", VideoPatch(captions=["a white stork"]))
    before = copied.read_cache.as_of
    with following(str(LATEST)):
        assert _find(copied, "a white stork")["birds-0"] == ["a white stork"]
    assert copied.read_cache.as_of != before


def test_rows_of_very_many_edits_are_read_with_their_domains(
    copied: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_read_cache, "_MAX_EDITED", 1)
    monkeypatch.setattr(catalog_read_cache, "_POLL_SECONDS", 3600.0)
    copied.read_cache.start(copied.snapshots.loaded)
    for number in range(2):
        edit_video(f"birds-{number}", VideoPatch(captions=["a grey heron"]))
    copied.read_cache.read_edits()
    assert copied.search("a grey heron").matching == 2, "words are read in steps"
    assert ["a grey heron"] not in _find(copied, BIRDS[0]).values()
    assert copied.read_cache.update(copied.snapshots.current())
    assert list(_find(copied, BIRDS[0]).values()).count(["a grey heron"]) == 2


ROWS = [
    (
        3,
        VideoRow(
            "a",
            "place/Käfer 🪲.mp4",
            ["ein Käfer 🪲", "two\nlines"],
            1.5,
            {"place": "wood", "tags": ["x", "y"]},
        ),
    ),
    (7, VideoRow("b", "b.mp4", [], None, {})),
    (2**45, VideoRow("c", "upload://tsk_c/c.mp4", ["last"], 0.0, {"nested": {"n": 1}, "flag": True})),
]


def test_rows_are_found_by_vector_id() -> None:
    rows = VideoRows(ROWS)
    assert rows.find([7, 2**45, 4, 2**45 + 1, 0]) == {7: ROWS[1][1], 2**45: ROWS[2][1]}
    assert rows.find([]) == {}
    assert rows.nbytes > sum(len(row.video_id) for _, row in ROWS)


def test_domain_without_videos_has_no_rows() -> None:
    assert VideoRows([]).find([1, 2]) == {}
