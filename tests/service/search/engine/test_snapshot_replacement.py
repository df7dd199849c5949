"""Replacement of snapshots: running searches keep theirs, and refused releases leave the current one in place."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cinestrata_schemas.search import SearchQuery
from index.index_snapshot import IndexSnapshot
from index.words.text_analysis import parse_query
from service.core.errors import Unavailable
from service.search import library_words
from service.search.engine import SearchEngine
from service.search.snapshots import generation_loader
from service.search.text_search import planner
from tests.index.disk_faults import flip_byte
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library


def test_unchanged_manifest_is_not_loaded_again(
    library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.snapshots.refresh()
    snapshot = service.snapshots.current()
    path = library.store.manifest_path
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)  # another file of the same generation
    assert not service.snapshots.refresh()
    assert service.snapshots.current() is snapshot
    opened: list[int] = []
    monkeypatch.setattr(IndexSnapshot, "open", lambda *arguments, **named: opened.append(1))
    assert not service.snapshots.refresh()
    assert opened == []


def test_running_search_is_answered_by_its_snapshot(
    library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.snapshots.refresh()
    before = library.store.manifest()
    rank = planner.rank_distinct

    def swap_first(*arguments: Any) -> Any:
        monkeypatch.setattr(planner, "rank_distinct", rank)
        library.add_task("sea", SEA)
        assert service.snapshots.refresh()
        assert service.search_many([SearchQuery(q="a whale", k=1)])[0].results[0].task == "sea"
        return rank(*arguments)

    monkeypatch.setattr(planner, "rank_distinct", swap_first)
    answer = service.search(SEA[2], k=20)
    assert (answer.generation, answer.release) == (before.generation, before.release)
    assert {result.task for result in answer.results} == {"birds", "cars"}
    assert len(answer.results) == 6
    assert service.search(SEA[2], k=20).generation == before.generation + 1


def test_concurrent_searches_succeed_while_snapshots_are_replaced(
    library: Library, service: SearchEngine
) -> None:
    service.snapshots.refresh()
    releases = {2: library.store.manifest().release}
    failures: list[BaseException] = []
    answers: list[Any] = []
    done = threading.Event()

    def search(number: int) -> None:
        try:
            while not done.is_set():
                answers.append(service.search(f"{CARS[0]} {number}", k=20))
        except BaseException as error:
            failures.append(error)

    searchers = [threading.Thread(target=search, args=(number,)) for number in range(3)]
    for thread in searchers:
        thread.start()
    try:
        for number in range(3):
            manifest = library.add_task(f"sea-{number}", SEA)
            releases[manifest.generation] = manifest.release
            assert service.snapshots.refresh()
            service.search("a last one, so that each generation answers")
    finally:
        done.set()
        for thread in searchers:
            thread.join()
    assert not failures
    assert answers
    for answer in answers:
        assert answer.release == releases[answer.generation]
        assert len(answer.results) == 6 + 3 * (answer.generation - 2)
        assert answer.results[0].video_id == "cars-0"


def test_damaged_release_is_refused_and_the_current_one_stays(
    learning: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    service.snapshots.refresh()
    before = service.search("an owl")
    manifest = learning.add_task("sea", SEA)
    assert manifest.release is not None
    path = learning.store.release_folder(manifest.release) / "weights.safetensors"
    flip_byte(path)
    assert not service.snapshots.refresh()
    assert service.snapshots.last_error is not None
    assert "weights.safetensors was altered" in service.snapshots.last_error
    after = service.search("an owl")
    assert (after.generation, after.results) == (before.generation, before.results)
    ready = service.snapshots.readiness()
    assert ready.ready
    assert "was altered" in ready.checks["index"]
    flip_byte(path)
    assert not service.snapshots.refresh()  # the failed load is not repeated at every poll
    pass_retry_interval()
    assert service.snapshots.refresh()
    assert service.snapshots.last_error is None
    assert service.search("a whale", task="sea").generation == manifest.generation


def test_release_with_nan_queries_is_refused(learning: Library, service: SearchEngine) -> None:
    service.snapshots.refresh()
    learning.method.begin_task("tsk_sea", "sea")
    torch.nn.init.constant_(learning.method.tame.a, float("nan"))  # type: ignore[attr-defined]
    learning.method.end_task()
    learning.method.record_task("tsk_sea", "sea", SEA)
    learning.publish("sea", SEA)
    assert not service.snapshots.refresh()
    assert "NaN or infinity" in str(service.snapshots.last_error)
    assert service.search("an owl").generation == 2


@pytest.mark.parametrize("text", ["{", "", '{"schema": 99, "checksum": "x"}'])
def test_broken_manifest_is_refused_and_the_current_snapshot_stays(
    library: Library, service: SearchEngine, text: str
) -> None:
    service.snapshots.refresh()
    library.store.manifest_path.write_text(text)
    assert not service.snapshots.refresh()
    assert "manifest.json" in str(service.snapshots.last_error)
    assert service.search("a taxi").generation == 2
    library.store.manifest_path.unlink()
    assert not service.snapshots.refresh()
    assert "manifest.json is missing" in str(service.snapshots.last_error)
    assert service.search("a taxi").generation == 2


def test_process_starts_with_an_earlier_release_where_the_newest_is_refused(
    library: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    manifest = library.store.manifest()
    assert manifest.release is not None
    weights = library.store.release_folder(manifest.release) / "weights.safetensors"
    whole = weights.read_bytes()
    flip_byte(weights)
    assert service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert (ready.ready, ready.tasks, ready.generation) == (True, 1, 2)
    assert ready.release == next(iter(manifest.releases)) != manifest.release
    assert "weights.safetensors was altered" in ready.checks["index"]
    assert "the served release is refused" in ready.degraded["cars"]
    matching = service.search(BIRDS[0], k=10)
    assert matching.results[0].video_id == "birds-0"
    assert {result.task for result in matching.results} == {"birds"}
    assert matching.release == ready.release
    assert "weights.safetensors was altered" in matching.degraded["cars"]
    with pytest.raises(Unavailable, match="'cars' can't be searched: the served release is refused"):
        service.search("a taxi", task="cars")
    pass_retry_interval()
    assert not service.snapshots.refresh()
    assert service.search(BIRDS[0]).release == ready.release
    weights.write_bytes(whole)
    pass_retry_interval()
    pass_retry_interval()
    assert service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert (ready.release, ready.degraded) == (manifest.release, {})
    assert service.search(CARS[1]).results[0].video_id == "cars-1"


@pytest.mark.parametrize("step", [(generation_loader, "load_snapshot"), (IndexSnapshot, "open")])
def test_process_starts_once_the_memory_suffices(
    step: tuple[object, str],
    library: Library,
    service: SearchEngine,
    pass_retry_interval: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full GPU refuses the newest release and all earlier ones, with an error other than a broken file's."""

    def refuse(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(*step, refuse)
        assert not service.snapshots.refresh()
        assert "CUDA out of memory" in service.snapshots.readiness().checks["index"]
        assert not service.snapshots.readiness().ready
    assert not service.snapshots.refresh()  # the failed load is not repeated at every poll
    pass_retry_interval()
    assert service.snapshots.refresh()
    assert (service.snapshots.readiness().ready, service.snapshots.readiness().tasks) == (True, 2)


def test_lost_manifest_is_not_an_empty_library(
    library: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    aside = library.store.manifest_path.rename(library.store.root / "manifest.aside")
    assert not service.snapshots.refresh()
    ready = service.snapshots.readiness()
    assert not ready.ready
    assert "the catalog has 2 published tasks" in ready.checks["index"]
    with pytest.raises(Unavailable, match=r"manifest.json is missing, .* restore the file from a backup"):
        service.search("a taxi")
    aside.rename(library.store.manifest_path)
    pass_retry_interval()
    assert service.snapshots.refresh()
    assert service.snapshots.readiness().ready


def test_words_follow_the_snapshots(library: Library, service: SearchEngine) -> None:
    def matching(text: str) -> list[int]:
        return words.current().lookup(parse_query(text)).videos.tolist()

    assert service.snapshots.refresh()
    words = service.read_cache.words
    assert len(matching("heron")) == 1
    assert matching("whale") == []
    library.add_task("sea", SEA, moments={1: SEA})
    assert matching("whale") == []
    assert service.snapshots.refresh()
    (whale,) = matching("whale")
    located = service.snapshots.current().video_tasks.locate(
        np.array([whale, *matching("heron"), *matching("taxi"), 99])
    )
    assert located.tolist() == [2, 0, 1, -1]
    library.store.delete([whale], task="tsk_sea")
    assert service.snapshots.refresh()
    assert matching("whale") == []
    assert words.current().suggest("whale", 5) == []


def test_snapshot_is_not_served_before_its_words_are_read(
    library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.snapshots.refresh()
    before = service.snapshots.current()
    library.add_task("sea", SEA)

    def fail(_: object) -> None:
        raise Unavailable("no")

    with monkeypatch.context() as patch:
        patch.setattr(library_words, "read_texts", fail)
        assert not service.snapshots.refresh()
        assert (service.snapshots.current(), service.snapshots.last_error) == (before, "no")
    assert service.snapshots.refresh()
    assert service.snapshots.current().video_tasks.locate(np.array([7])).tolist() == [2]
    assert service.snapshots.last_error is None
