"""Searches while the catalog database cannot be reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from cinestrata_schemas.search import SearchResponse
from index.hits import Hit
from service.catalog.database import session_scope
from service.catalog.tables import Task, Video
from service.core.errors import Unavailable
from service.search.catalog_read_cache import CatalogReadCache
from service.search.engine import SearchEngine
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
    service.metadata_cache.preload(snapshot)
    yield service
    service.catalog_reads.close()


def _without_times(response: SearchResponse) -> SearchResponse:
    return response.model_copy(update={"timing_ms": None, "metadata_as_of": None})


def test_copy_answers_as_the_catalog_does(
    library: Library,
    cached: SearchEngine,
    lose_database: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
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
    cached.metadata_cache.metadata_by_task.clear()
    snapshot = cached.snapshots.current()
    small = CatalogReadCache(cached.catalog_reads, max_bytes=cached.read_cache.videos("tsk_birds")[1].nbytes)
    assert small.update(snapshot)
    started_later = SearchEngine(library.settings)
    assert started_later.snapshots.refresh()
    lose_database()

    found = search()
    assert [_without_times(response) for response in found] == [_without_times(r) for r in expected]
    assert cached.read_cache.as_of is not None
    assert {response.metadata_as_of for response in found} == {cached.read_cache.as_of}
    assert cached.catalog_reads.is_interrupted
    with pytest.raises(Unavailable):
        cached.search("a bird", task="nowhere")

    # A copy without space for all domains names the others.
    hits = [Hit(task, int(shard.ids[0]), 0.5) for task, shard in snapshot.shards.items()]
    rows = small.read_results(hits, snapshot)
    assert [row.video_id for row in rows.rows.values()] == ["birds-0"]
    assert rows.not_cached.keys() == {"tsk_cars", "tsk_sea"}
    with pytest.raises(Unavailable):
        small.videos("tsk_cars")

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
    service.metadata_cache.preload(service.snapshots.current())

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
