"""Searches with a pinned release: its domains only, without deleted videos, in running and restarted processes."""

from __future__ import annotations

import pytest

from service.core.errors import Conflict, Gone
from service.core.settings import Settings
from service.library import deletion
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, flip_last_byte


def found_tasks(service: SearchEngine) -> set[str]:
    return {result.task for result in service.search(CARS[0], k=20).results}


def test_running_process_follows_the_served_release_back_and_forward(
    learning: Library, service: SearchEngine
) -> None:
    first = next(iter(learning.store.manifest().releases))
    service.snapshots.refresh()
    newest = service.search(CARS[0], k=20)
    learning.store.serve(first)
    assert service.snapshots.refresh()
    assert found_tasks(service) == {"birds"}
    ready = service.snapshots.readiness()
    assert (ready.ready, ready.release, ready.pinned, ready.degraded) == (True, first, True, {})
    assert "later releases not searched: 1" in ready.checks["release"]
    learning.store.serve(None)
    assert service.snapshots.refresh()
    assert not service.snapshots.readiness().pinned
    again = service.search(CARS[0], k=20)
    assert [(r.video_id, r.score) for r in again.results] == [(r.video_id, r.score) for r in newest.results]


def test_task_published_under_a_pin_is_not_searched_until_it_is_served(
    learning: Library, service: SearchEngine
) -> None:
    first = next(iter(learning.store.manifest().releases))
    learning.store.serve(first)
    service.snapshots.refresh()
    published = learning.add_task("sea", SEA)
    service.snapshots.refresh()
    assert found_tasks(service) == {"birds"}
    with pytest.raises(Conflict, match="'sea' was learned after the served release"):
        service.search(SEA[0], task="sea")
    with pytest.raises(Conflict, match="learned after the served release"):
        service.search_similar("sea-0")
    learning.store.serve(published.release)
    service.snapshots.refresh()
    assert service.search(SEA[0], task="sea").results[0].video_id == "sea-0"
    assert found_tasks(service) == {"birds", "cars", "sea"}


def test_deleted_videos_stay_deleted_after_a_rollback(learning: Library, service: SearchEngine) -> None:
    first = next(iter(learning.store.manifest().releases))
    service.snapshots.refresh()
    deletion.delete_videos(["birds-0", "cars-1"])
    learning.store.serve(first)
    service.snapshots.refresh()
    assert "birds-0" not in {result.video_id for result in service.search(BIRDS[0], k=20).results}
    deletion.delete_videos(["birds-1"])  # while the release is pinned
    service.snapshots.refresh()
    assert [result.video_id for result in service.search(BIRDS[1], k=20).results] == ["birds-2"]
    learning.store.serve(None)
    service.snapshots.refresh()
    video_ids = {result.video_id for result in service.search(BIRDS[0], k=20).results}
    assert video_ids == {"birds-2", "cars-0", "cars-2"}


def test_list_of_a_withdrawn_release_ends(learning: Library, service: SearchEngine) -> None:
    first = next(iter(learning.store.manifest().releases))
    service.snapshots.refresh()
    cursor = service.search(CARS[0], 2).next_cursor
    learning.store.serve(first)
    service.snapshots.refresh()
    with pytest.raises(Gone, match="no longer served"):
        service.search(CARS[0], 2, cursor=cursor)
    earlier = service.search(CARS[0], 2).next_cursor
    learning.store.serve(None)
    service.snapshots.refresh()
    assert {result.task for result in service.search(CARS[0], 2, cursor=earlier).results} == {"birds"}


def test_process_starts_with_the_pinned_release_and_never_with_a_later_one(
    learning: Library, configured: Settings, service: SearchEngine
) -> None:
    learning.add_task("sea", SEA)
    first, second, _ = learning.store.manifest().releases
    learning.store.serve(second)
    assert service.snapshots.refresh()
    assert found_tasks(service) == {"birds", "cars"}
    flip_last_byte(learning.store.release_folder(second) / "weights.safetensors")
    restarted = SearchEngine(configured)
    try:
        assert restarted.snapshots.refresh()
        assert restarted.snapshots.readiness().release == first
        degraded = set(restarted.snapshots.readiness().degraded)
        assert degraded == {"cars"}  # of the pinned release; "sea" is not served
    finally:
        restarted.close()
