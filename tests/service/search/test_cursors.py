"""Cursors: all pages equal the whole list, also if snapshots are published between requests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from cinestrata_schemas.search import SearchQuery, SearchResult
from index.files.manifest_format import Manifest
from models.backbones.backbone import Backbone
from service.catalog.database import session_scope
from service.catalog.tables import Video
from service.core import request_limits
from service.core.errors import Gone, InvalidInput, Unavailable
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.search_request import Cursor, parse_cursor
from service.search.snapshots import snapshot_manager
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search import executor
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, Served


@pytest.fixture
def served(configured: Settings, backbone: Backbone, service: SearchEngine) -> Served:
    """Birds and cars, with adapters that differ between releases; all scores are distinct."""
    library = Library(configured, backbone, "ffa_tame", experts=2, rank=2)
    for name, captions in (("birds", BIRDS), ("cars", CARS)):
        library.add_task(name, [f"{c}, {n}" for n in range(4) for c in captions])
    assert service.snapshots.refresh()
    return library, service


def _pages(
    service: SearchEngine, sizes: list[int], between: Callable[[], None], **parameters: Any
) -> list[SearchResult]:
    """Return all results, page by page; the last page size is repeated."""
    listed: list[SearchResult] = []
    cursor = None
    while True:
        answer = service.search("an owl", sizes[0], cursor=cursor, **parameters)
        listed += answer.results
        cursor, sizes = answer.next_cursor, sizes[1:] or sizes
        if cursor is None:
            return listed
        between()


@pytest.mark.slow
def test_pages_equal_one_long_list(served: Served) -> None:
    _, service = served
    selections: list[dict[str, Any]] = [{}, {"task": "cars"}, {"mode": "latest"}, {"min_score": 0.5}]
    for parameters in selections:
        whole = service.search("an owl", 100, **parameters)
        assert whole.next_cursor is None
        assert len(whole.results) >= 3
        for sizes in ([1], [5], [24], [100], [3, 10, 1, 7]):
            listed = _pages(service, sizes, lambda: None, **parameters)
            assert listed == whole.results, (parameters, sizes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pinned", "latest"])
def test_later_pages_are_answered_by_the_release_of_the_first(served: Served, mode: str) -> None:
    library, service = served
    whole = service.search("an owl", 100, mode=mode)
    names = iter("abcdefg")

    def publish() -> None:
        library.add_task(f"sea-{next(names)}", SEA)
        assert service.snapshots.refresh()

    first = service.search("an owl", 5, mode=mode)
    assert _pages(service, [5], publish, mode=mode) == whole.results
    newest = service.search("an owl", 100, mode=mode)
    assert {result.task for result in newest.results} > {"birds", "cars"}
    second = service.search("an owl", 5, mode=mode, cursor=first.next_cursor)
    assert (second.release, second.generation) == (first.release, first.generation)
    assert second.release != newest.release
    assert {entry.task for entry in second.routing} == {"birds", "cars"}
    assert second.degraded == {}, "tasks published later are not degraded"
    other_process = SearchEngine(service.settings)  # another process, started later
    other_process.snapshots.refresh()
    again = other_process.search("an owl", 5, mode=mode, cursor=first.next_cursor)
    assert [result.video_id for result in again.results] == [result.video_id for result in second.results]
    assert [result.score for result in again.results] == pytest.approx(
        [r.score for r in second.results], abs=1e-6
    )


@pytest.mark.parametrize("text", ["an owl", "a red car", "a heron"])
@pytest.mark.parametrize("k", [2, 5, 15])
def test_a_large_shard_that_is_scanned_in_parts_gives_the_list_of_a_small_one(
    served: Served, monkeypatch: pytest.MonkeyPatch, text: str, k: int
) -> None:
    _, service = served
    whole = service.search(text, k).results
    monkeypatch.setattr(executor, "_FEW_VECTORS", 0)
    assert service.search(text, k).results == whole


def test_earlier_releases_are_cached_per_generation(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    library, service = served
    cursors = [service.search("an owl", 5).next_cursor]
    for name in ("sea", "lake", "pond"):
        library.add_task(name, SEA)
        service.snapshots.refresh()
        cursors.append(service.search("an owl", 5).next_cursor)
    loaded: list[str | None] = []
    load = snapshot_manager.load_snapshot

    def watched(snapshot: Any, backbone: Any, release: str | None = None, **options: Any) -> SearchSnapshot:
        loaded.append(release)
        return load(snapshot, backbone, release, **options)

    monkeypatch.setattr(snapshot_manager, "load_snapshot", watched)
    for number in (3, 2, 1, 2, 1, 3):
        service.search("an owl", 5, cursor=cursors[number])
    assert len(loaded) == 2, "each of two earlier releases is loaded once"
    for _ in range(3):
        service.search("an owl", 5, cursor=cursors[0])
    assert len(loaded) == 3
    library.add_task("river", SEA)
    service.snapshots.refresh()
    assert service.search("an owl", 5, cursor=cursors[0]).results
    assert len(loaded) > 3, "a new generation clears the cache"


def test_ranks_continue_after_videos_missing_in_the_catalog(served: Served) -> None:
    _, service = served
    everything = [result.video_id for result in service.search("an owl", 100).results]
    with session_scope(write=True) as session:
        session.query(Video).filter(Video.id.in_(everything[1:3])).delete()
    listed = _pages(service, [4], lambda: None)
    assert [result.video_id for result in listed] == [everything[0], *everything[3:]]
    assert [result.rank for result in listed] == list(range(1, len(everything) - 1))


def _delete(library: Library, results: list[SearchResult]) -> None:
    """Delete the videos of results from the index and the catalog."""
    with session_scope(write=True) as session:
        for result in results:
            video = session.query(Video).filter_by(id=result.video_id).one()
            library.store.delete([video.vector_id], task=video.task_id)
            session.delete(video)


@pytest.mark.parametrize("parameters", [{}, {"task": "birds"}, {"routes": "all"}], ids=str)
def test_each_video_is_found_while_every_page_is_deleted(served: Served, parameters: dict[str, Any]) -> None:
    """A client deletes the results of each page before it requests the next one."""
    library, service = served
    whole = _pages(service, [5], lambda: None, **parameters)
    assert len(whole) > 5
    listed: list[SearchResult] = []
    cursor = None
    while True:
        answer = service.search("an owl", 5, cursor=cursor, **parameters)
        listed += answer.results
        if (cursor := answer.next_cursor) is None:
            break
        _delete(library, answer.results)
        service.snapshots.refresh()
    assert [(result.rank, result.video_id) for result in listed] == [
        (result.rank, result.video_id) for result in whole
    ]


@pytest.mark.parametrize("deleted", [[0, 1], [3], [1, 3, 5]], ids=str)
def test_pages_omit_no_video_after_deletions(served: Served, deleted: list[int]) -> None:
    library, service = served
    whole = service.search("an owl", 100, routes="all").results
    first = service.search("an owl", 4, routes="all")
    _delete(library, [whole[place] for place in deleted])
    service.snapshots.refresh()
    second = service.search("an owl", 4, routes="all", cursor=first.next_cursor).results
    expected = [result.video_id for place, result in enumerate(whole) if place > 3 and place not in deleted]
    assert [result.video_id for result in second] == expected[:4]
    assert [result.rank for result in second] == [5, 6, 7, 8]


def test_batch_mixes_pages_and_first_pages(served: Served) -> None:
    library, service = served
    words = ["an owl", "a taxi", "waves"]
    # With all routes, because with auto a long first page searches more tasks than a short one.
    whole = [service.search(text, 10, routes="all").results for text in words]
    first = service.search_many([SearchQuery(q=text, k=4, routes="all") for text in words])
    library.add_task("sea", SEA)
    service.snapshots.refresh()
    parameters = [
        SearchQuery(q=text, k=6, routes="all", cursor=one.next_cursor)
        for text, one in zip(words, first, strict=True)
    ]
    answers = service.search_many([*parameters[:2], SearchQuery(q="waves", k=4), parameters[2]])
    assert answers[2].generation == 3
    for one, two, both in zip(first, [*answers[:2], answers[3]], whole, strict=True):
        assert [r.video_id for r in (*one.results, *two.results)] == [r.video_id for r in both]
        assert two.generation == one.generation == 2


def test_list_ends_at_the_maximum_depth(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, service = served
    whole = service.search("an owl", 100).results
    monkeypatch.setattr(request_limits, "MAX_PAGED_RESULTS", 7)
    assert _pages(service, [3], lambda: None) == whole[:7]


@pytest.mark.slow
def test_cursor_of_another_search_is_refused_with_the_differing_parameters(served: Served) -> None:
    _, service = served
    parameters: dict[str, Any] = {"q": "an owl", "k": 3, "task": ["cars", "birds"]}
    cursor = service.search(**parameters).next_cursor
    equal: list[dict[str, Any]] = [{"where": {}}, {"q": "  an owl "}, {"k": 20}]
    for change in equal:
        assert service.search(**{**parameters, **change}, cursor=cursor).results[0].rank == 4, change
    other: list[tuple[dict[str, Any], str]] = [
        ({"q": "an owl in a tree"}, "q differs"),
        ({"task": ["birds"]}, "task differs"),
        ({"mode": "latest"}, "mode differs"),
        ({"routes": 1}, "routes differs"),
        ({"min_score": -1.0, "max_duration": 5.0}, "max_duration and min_score differ"),
        ({"arrived_after": datetime.min.replace(tzinfo=UTC)}, "arrived_after differs"),
    ]
    for change, differs in other:
        words = f"The cursor belongs to another search: {differs}"
        with pytest.raises(InvalidInput, match=words) as refused:
            service.search(**{**parameters, **change}, cursor=cursor)
        assert [error.field for error in refused.value.errors] == ["cursor"]


def test_list_continues_with_the_tasks_of_its_first_page_before_other_tasks(served: Served) -> None:
    _, service = served
    first = service.search("an owl lands on a branch", 2)
    (searched_task,) = (entry.task for entry in first.routing if entry.searched)
    everything = service.search("an owl lands on a branch", 24, routes="all").results
    listed = list(first.results)
    cursor = first.next_cursor
    while cursor is not None:
        answer = service.search("an owl lands on a branch", 5, cursor=cursor)
        listed, cursor = listed + answer.results, answer.next_cursor
    assert [result.rank for result in listed] == list(range(1, 25))
    expected = [r for r in everything if r.task == searched_task] + [
        r for r in everything if r.task != searched_task
    ]
    assert [result.video_id for result in listed] == [result.video_id for result in expected]


def test_modified_cursor_is_refused(served: Served) -> None:
    _, service = served
    cursor = service.search("an owl", 3).next_cursor
    assert cursor is not None
    altered = ["", "x", "é", "A" * 5000, "\ud800", "=" * 8, "null", "e30", " "]
    for place in range(0, len(cursor), 7):
        other = "A" if cursor[place] != "A" else "B"
        altered += [cursor[:place] + other + cursor[place + 1 :], cursor[:place]]
    for text in altered:
        with pytest.raises(InvalidInput, match="not an intact cursor") as refused:
            service.search("an owl", 3, cursor=text)
        assert [error.field for error in refused.value.errors] == ["cursor"]


def test_cursor_is_parsed_as_encoded_and_validated() -> None:
    cursor = Cursor(
        release="r" * 64,
        generation=7,
        mode="pinned",
        hit_offset=20,
        result_offset=19,
        parameters={"q": "0123456789ab"},
        tasks_in_first_page=3,
        last=("tsk_0", 2**40, 0.25),
    )
    assert parse_cursor(str(cursor)) == cursor
    for wrong in (
        {"tasks_in_first_page": -1},
        {"hit_offset": -1},
        {"hit_offset": 2**31},
        {"result_offset": 0.5},
        {"result_offset": True},
        {"release": 1},
        {"parameters": []},
        {"last": ("tsk_0", "1", 2.0)},
        {"other": 1},
    ):
        with pytest.raises(ValueError, match="Cursor"):
            Cursor.model_validate_json(json.dumps({**cursor.model_dump(), **wrong}))


def test_cursor_of_a_removed_release_is_gone(served: Served) -> None:
    library, service = served
    first = service.search("an owl", 3)
    library.add_task("sea", SEA)
    other_process = SearchEngine(service.settings)
    other_process.snapshots.refresh()
    manifest: Manifest = library.store.manifest()
    shutil.rmtree(library.store.release_folder(str(first.release)))
    with pytest.raises(Gone, match=r"no longer kept intact: .*Search again without the cursor") as refused:
        other_process.search("an owl", 3, cursor=first.next_cursor)
    assert [error.field for error in refused.value.errors] == ["cursor"]
    cursor = parse_cursor(str(first.next_cursor))
    assert cursor is not None
    assert cursor.release in manifest.releases
    with pytest.raises(Gone, match=r"no longer kept\. Search again"):
        other_process.search("an owl", 3, cursor=str(cursor.model_copy(update={"release": "0" * 64})))


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")], ids=repr)
def test_cursor_waits_while_the_memory_is_full(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    library, service = served
    first = service.search("an owl", 3)
    library.add_task("sea", SEA)
    assert service.snapshots.refresh()

    def fail(*args: object, **parameters: object) -> SearchSnapshot:
        raise error

    with monkeypatch.context() as full:
        full.setattr(snapshot_manager, "load_snapshot", fail)
        with pytest.raises(Unavailable, match="try again in 5 seconds"):
            service.search("an owl", 3, cursor=first.next_cursor)
    assert len(service.search("an owl", 3, cursor=first.next_cursor).results) == 3
