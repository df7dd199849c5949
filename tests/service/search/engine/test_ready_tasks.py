"""The releases that the engine serves: at its start, as soon as a task is ready, and pinned by an operator."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from cinestrata_schemas.search import SearchQuery
from models.backbones import query_backbone
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders import encoder_registry
from models.errors import ReleaseError
from service.catalog.database import session_scope
from service.catalog.tables import Task
from service.core.errors import Conflict, Gone, InvalidInput, Unavailable
from service.core.settings import Settings
from service.library import deletion
from service.search.engine import SearchEngine
from service.search.search_request import parse_requests
from service.search.snapshots import generation_loader, snapshot_manager
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.snapshots.snapshot_manager import SnapshotManager
from service.search.text_search.executor import resolve_tasks
from tests.index.disk_faults import flip_byte
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library


def test_empty_library_is_ready_and_searches_are_unavailable(
    configured: Settings, service: SearchEngine
) -> None:
    assert not service.snapshots.readiness().ready
    with pytest.raises(Unavailable, match="still being loaded"):
        service.search("a taxi")
    with pytest.raises(InvalidInput):  # fields are checked without a snapshot
        service.search("", k=5)
    assert not service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert ready.ready  # otherwise a client that waits for readiness never posts the first task
    assert (ready.tasks, ready.generation) == (0, 0)
    assert "no domain has been learned" in ready.checks["index"]
    with pytest.raises(Unavailable, match="no domain has been learned yet") as refused:
        service.search("a taxi")
    assert refused.value.retry_after > 0
    assert not configured.index_dir.exists()  # reading creates no folder


def test_process_without_backbone_is_not_ready(
    configured: Settings, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def unavailable(name: str, frames: int | None, **_: object) -> Backbone:
        attempts.append(name)
        return load_backbone("open_clip:no-such-model/x")

    monkeypatch.setattr(encoder_registry, "load_backbone", unavailable)
    assert not service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert not ready.ready
    assert "no-such-model" in ready.checks["model"]
    with pytest.raises(Unavailable, match="no-such-model"):
        service.search("a taxi")
    service.snapshots.refresh()
    assert len(attempts) == 1  # the failed load is not repeated at every poll


def test_background_thread_loads_new_generations(
    configured: Settings, backbone: Backbone, service: SearchEngine
) -> None:
    service.start()
    library = Library(configured, backbone, "zero_shot")
    for name, captions in (("birds", BIRDS), ("cars", CARS)):
        generation = library.add_task(name, captions).generation
        deadline = time.monotonic() + 30
        while service.snapshots.readiness().generation < generation and time.monotonic() < deadline:
            time.sleep(0.05)
        assert service.snapshots.readiness().generation == generation
    assert service.search(CARS[1], k=1).results[0].video_id == "cars-1"
    service.close()


def test_background_thread_survives_any_error(
    library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, original = threading.Event(), SnapshotManager.refresh

    def fail_once(snapshots: SnapshotManager) -> bool:
        if not failed.is_set():
            failed.set()
            raise MemoryError("out of memory")
        return original(snapshots)

    monkeypatch.setattr(SnapshotManager, "refresh", fail_once)
    service.start()
    deadline = time.monotonic() + 30
    while not service.snapshots.readiness().ready and time.monotonic() < deadline:
        time.sleep(0.05)
    assert failed.is_set()
    assert service.snapshots.readiness().tasks == 2


@pytest.mark.parametrize(("configured_threads", "expected"), [(None, 1), (3, 3)])
def test_number_of_torch_threads_is_one_by_default(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    configured_threads: int | None,
    expected: int,
) -> None:
    monkeypatch.setattr(encoder_registry, "load_backbone", lambda name, frames, **_: backbone)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(query_backbone, "_threads", None)  # restored: later tests load backbones, too
    service = SearchEngine(
        settings_factory(tmp_path, **({"torch_threads": configured_threads} if configured_threads else {}))
    )
    service.start()
    service.close()
    assert set(threads) == {expected}


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
    with pytest.raises(Unavailable, match="Domain 'sea' is ready, but this process hasn't loaded") as refused:
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


def test_first_published_task_is_searchable_before_the_next_poll_and_while_it_is_loaded(
    configured: Settings, backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_engine, other = SearchEngine(configured), SearchEngine(configured)
    assert not search_engine.snapshots.refresh()
    assert not other.snapshots.refresh()
    Library(configured, backbone, "zero_shot").add_task("birds", BIRDS)
    assert search_engine.search("an owl", task="birds").results
    load, is_loading = generation_loader.load_snapshot, Event()

    def load_slowly(*arguments: Any, **options: Any) -> SearchSnapshot:
        is_loading.set()
        Event().wait(0.2)  # lets the search arrive
        return load(*arguments, **options)

    monkeypatch.setattr(generation_loader, "load_snapshot", load_slowly)
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(other.snapshots.refresh)
        assert is_loading.wait(10)
        assert other.search("an owl").results
        assert loaded.result()


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
    flip_byte(learning.store.release_folder(second) / "weights.safetensors")
    restarted = SearchEngine(configured)
    try:
        assert restarted.snapshots.refresh()
        assert restarted.snapshots.readiness().release == first
        degraded = set(restarted.snapshots.readiness().degraded)
        assert degraded == {"cars"}  # of the pinned release; "sea" is not served
    finally:
        restarted.close()
