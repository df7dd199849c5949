"""Results have rows from the copy in memory while it is current, and from the catalog otherwise."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from cinestrata_schemas.search import SearchQuery
from cinestrata_schemas.videos import FeedbackSpec, VideoPatch
from service.library.deletion import delete_videos
from service.library.video_changes import edit_video, give_feedback
from service.search import catalog_read_cache
from service.search.engine import SearchEngine
from service.search.search_request import parse_requests
from service.search.text_search.answers import answer_searches
from service.search.text_search.executor import TextSearch, execute
from tests.service.search.caption_library import BIRDS, CARS, Library, copy_rows


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
    found = _find(copied, BIRDS[0])
    assert catalog_reads == []
    edit_video("birds-0", VideoPatch(captions=["a grey heron"]))
    edited = found | {"birds-0": ["a grey heron"]}
    assert _find(copied, BIRDS[0]) == edited
    assert catalog_reads == [6]
    copy_rows(copied)
    assert _find(copied, BIRDS[0]) == edited
    assert catalog_reads == [6]


def test_searches_that_end_together_show_the_edits_before_each(
    copied: SearchEngine, catalog_reads: list[int]
) -> None:
    snapshot, cache = copied.snapshots.current(), copied.metadata_cache
    requests = parse_requests([SearchQuery(q=BIRDS[0], k=20)], copied.settings)

    def run() -> TextSearch:
        (search,) = execute(snapshot, requests, cache)
        return search

    first = run()
    edit_video("birds-0", VideoPatch(captions=["a grey heron"]))
    responses = answer_searches(snapshot, [first, run()], cache)
    assert catalog_reads == [6]
    for response in responses:
        assert ["a grey heron"] in [result.captions for result in response.results]


def test_a_verdict_leaves_the_copy_as_it_is(
    copied: SearchEngine, catalog_reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_read_cache, "_read_videos", None)
    give_feedback(FeedbackSpec(text=BIRDS[0], video_id="birds-0", verdict="right"))
    assert copied.read_cache.update(copied.snapshots.current()), "at once, because no row is read"
    assert "birds-0" in _find(copied, BIRDS[0])
    assert catalog_reads == []


def test_a_deleted_video_is_not_shown_by_a_process_that_has_not_read_the_tombstones(
    copied: SearchEngine, catalog_reads: list[int]
) -> None:
    kept = _find(copied, CARS[1])
    del kept["cars-1"]
    delete_videos(["cars-1"])
    assert _find(copied, CARS[1]) == kept
    copy_rows(copied)
    assert _find(copied, CARS[1]) == kept
    assert catalog_reads == [6, 6], "the deleted video has no row in the copy"
    copied.snapshots.refresh()
    copy_rows(copied)
    assert _find(copied, CARS[1]) == kept
    assert catalog_reads == [6, 6]


def test_rows_copied_with_another_version_of_the_shard_are_read_again(
    library: Library, copied: SearchEngine, catalog_reads: list[int]
) -> None:
    library.store.delete([int(copied.snapshots.current().shards["tsk_cars"].ids[1])], task="tsk_cars")
    assert copied.snapshots.refresh()
    found = _find(copied, CARS[1])
    assert catalog_reads == [5]
    copy_rows(copied)
    assert _find(copied, CARS[1]) == found
    assert catalog_reads == [5]
