"""A task with the state ready is searchable before the next poll."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from cinestrata_schemas.search import SearchQuery
from models.backbones.backbone import Backbone
from models.errors import ReleaseError
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import InvalidInput, Unavailable
from service.core.settings import Settings
from service.search.engine import SearchEngine
from service.search.search_request import parse_requests
from service.search.snapshots import generation_loader, snapshot_manager
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search.executor import resolve_tasks
from tests.service.search.caption_library import BIRDS, SEA, Library


@pytest.fixture
def lagging(library: Library, configured: Settings) -> SearchEngine:
    """An engine without a poller whose snapshot lacks the task ``sea``, which the catalog reports as ready."""
    search_engine = SearchEngine(configured)
    assert search_engine.snapshots.refresh()
    library.add_task("sea", SEA)
    assert search_engine.snapshots.readiness().tasks == 2
    return search_engine


READY_TASK_SEARCHES: dict[str, Callable[[SearchEngine], Any]] = {
    "name": lambda search_engine: search_engine.search(SEA[2], task="sea"),
    "id": lambda search_engine: search_engine.search(SEA[2], task=["tsk_sea", "birds"]),
    "filter": lambda search_engine: search_engine.search(SEA[2], task="sea", max_duration=None, min_score=-1),
    "batch": lambda search_engine: search_engine.search_many(
        [SearchQuery(q=SEA[0]), SearchQuery(q=SEA[2], task="sea")]
    )[1],
    "async": lambda search_engine: asyncio.run(search_engine.search_async(SearchQuery(q=SEA[2], task="sea"))),
    "similar": lambda search_engine: search_engine.search_similar("sea-0"),
    "captions": lambda search_engine: search_engine.caption_video("sea-2"),
}


@pytest.mark.parametrize("kind", READY_TASK_SEARCHES)
def test_ready_task_is_searchable_before_the_next_poll(lagging: SearchEngine, kind: str) -> None:
    response = READY_TASK_SEARCHES[kind](lagging)
    assert response.generation == 3
    assert lagging.snapshots.readiness().tasks == 3


def test_clip_search_in_a_ready_task_loads_its_snapshot(
    lagging: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(snapshot: SearchSnapshot, upload: Any, query: SearchQuery, **_: Any) -> Any:
        (request,) = parse_requests([query], lagging.settings)
        return resolve_tasks(snapshot, request, lagging.read_cache)

    monkeypatch.setattr(lagging.clips, "search", search)
    assert lagging.search_clip(io.BytesIO(b"clip"), task="sea") == ("tsk_sea",)


def test_unknown_task_is_refused_without_loading(
    lagging: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lagging.snapshots, "refresh", lambda: pytest.fail("there is nothing to load"))
    with session_scope(write=True) as session:
        session.get_one(Task, "tsk_sea").state = "training"
    for task in ("sea", "nowhere"):
        with pytest.raises(InvalidInput, match="There is no searchable task"):
            lagging.search("a whale", task=task)


def test_searches_of_loaded_tasks_do_not_read_the_state_of_tasks(
    lagging: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lagging.snapshots, "catch_up", lambda *_: pytest.fail("the task is loaded"))
    assert lagging.search("a taxi", task="cars").results
    assert lagging.search("a taxi").generation == 2


def test_concurrent_searches_of_a_ready_task_share_one_load(
    lagging: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    load = generation_loader.load_snapshot

    def load_slowly(*arguments: Any, **options: Any) -> SearchSnapshot:
        loads.append(threading.current_thread().name)
        Event().wait(0.1)  # lets the other threads arrive
        return load(*arguments, **options)

    monkeypatch.setattr(generation_loader, "load_snapshot", load_slowly)
    with ThreadPoolExecutor(6) as pool:
        responses = list(pool.map(lambda _: lagging.search("a whale", task="sea"), range(6)))
    assert {response.generation for response in responses} == {3}
    assert len(loads) == 1


def test_search_of_a_ready_task_is_unavailable_where_loading_takes_too_long(
    lagging: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_manager, "CATCH_UP_SECONDS", 0.05)
    release = Event()
    refresh = lagging.snapshots.refresh
    monkeypatch.setattr(lagging.snapshots, "refresh", lambda: release.wait(10) and refresh())
    with pytest.raises(Unavailable, match="Task 'sea' is ready, but this process hasn't loaded") as refused:
        lagging.search("a whale", task="sea")
    assert int(refused.value.headers["Retry-After"]) > 0
    release.set()
    monkeypatch.setattr(snapshot_manager, "CATCH_UP_SECONDS", 10)
    assert lagging.search("a whale", task="sea").results


def test_search_of_a_ready_task_is_unavailable_where_its_release_is_refused(
    lagging: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> SearchSnapshot:
        raise ReleaseError("the release is broken")

    monkeypatch.setattr(generation_loader, "load_snapshot", refuse)
    with pytest.raises(Unavailable, match="the release is broken") as refused:
        lagging.search("a whale", task="sea")
    assert int(refused.value.headers["Retry-After"]) == 30
    assert lagging.search("a taxi", task="cars").results


def test_first_published_task_is_searchable_before_the_next_poll(
    configured: Settings, backbone: Backbone
) -> None:
    search_engine = SearchEngine(configured)
    assert not search_engine.snapshots.refresh()
    Library(configured, backbone, "zero_shot").add_task("birds", BIRDS)
    assert search_engine.search("an owl", task="birds").results
