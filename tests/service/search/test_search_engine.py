"""The search engine: results, refused requests, and the sequence of snapshots."""

from __future__ import annotations

import asyncio
import io
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import event

from index.index_snapshot import IndexSnapshot
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import load_backbone
from models.encoders.query_encoder import QueryEncoder
from models.errors import ReleaseError
from models.releases.release_lineage import ReleaseTask
from models.routing.routing_profiles import RoutingProfiles
from service.catalog.database import engine, session_scope
from service.catalog.tables import Task, Video
from service.core.errors import InvalidInput, Unavailable
from service.core.schemas import SearchQuery
from service.core.settings import Settings, settings
from service.search import engine as engine_module
from service.search.engine import SearchEngine
from service.search.requests.request_resolution import resolve_tasks
from service.search.requests.search_request import parse_requests
from service.search.snapshots import snapshot_manager
from service.search.snapshots.search_snapshot import SearchSnapshot
from service.search.text_search import planner
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, settled

# Tensors are small: a second thread costs more than it saves, in particular on a busy machine.
torch.set_num_threads(1)


@pytest.fixture
def overrides() -> dict[str, Any]:
    return {"limits__max_results": 20}


@pytest.fixture
def library(configured: Settings, backbone: Backbone) -> Library:
    """Birds and cars, in the embedding space of the backbone."""
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS)
    return library


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, backbone: Backbone
) -> Iterator[tuple[Library, SearchEngine]]:
    """A library of birds and cars and its engine, shared by tests that change nothing."""
    with settled(tmp_path_factory.mktemp("shared"), backbone, limits__max_results=20) as configured:
        library = Library(configured, backbone, "zero_shot")
        library.add_task("birds", BIRDS)
        library.add_task("cars", CARS)
        service = SearchEngine(configured)
        assert service.refresh()
        yield library, service


@pytest.fixture
def pass_retry_interval(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Function that advances the clock of the snapshot manager by more than a retry interval."""
    elapsed = [0.0]

    def advance() -> None:
        elapsed[0] += 31

    clock = SimpleNamespace(perf_counter=time.perf_counter, monotonic=lambda: time.monotonic() + elapsed[0])
    monkeypatch.setattr(snapshot_manager, "time", clock)
    return advance


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


# -- results ------------------------------------------------------------------------------------------------


def test_best_match_comes_first_with_its_metadata(
    shared: tuple[Library, SearchEngine],
) -> None:
    library, service = shared
    answer = service.search(f"  {CARS[1]} ", k=4)
    assert [result.rank for result in answer.results] == [1, 2, 3, 4]
    best = answer.results[0]
    assert (best.video_id, best.task, best.task_id) == ("cars-1", "cars", "tsk_cars")
    assert best.captions == [CARS[1]]
    assert best.thumbnail_url == "/videos/cars-1/thumbnail"
    assert best.stream_url == "/videos/cars-1/stream"
    assert best.score == pytest.approx(1, abs=1e-5)
    assert [r.score for r in answer.results] == sorted((r.score for r in answer.results), reverse=True)
    assert (answer.release, answer.generation) == (library.store.manifest().release, 2)
    assert answer.query == f"  {CARS[1]} "
    assert answer.degraded == {}


def test_ranking_equals_that_of_all_vectors(shared: tuple[Library, SearchEngine]) -> None:
    library, service = shared
    text = "something turns left"
    answer = service.search(text, k=20)
    weights = {entry.task: entry.weight for entry in answer.routing}
    lift = [
        settings().routing_prior * math.log(weights[task]) for task in ("birds", "cars") for _ in range(3)
    ]
    # Encoded in the batches of the stored vectors: in another batch the last bits may round differently.
    stored = np.concatenate([library.stored(captions) for captions in (BIRDS, CARS)])
    scores = stored @ library.features([text])[0] + np.array(lift)
    names = [f"birds-{n}" for n in range(3)] + [f"cars-{n}" for n in range(3)]
    assert [result.video_id for result in answer.results] == [names[n] for n in np.argsort(-scores)]
    assert [result.score for result in answer.results] == pytest.approx(
        sorted(scores, reverse=True), abs=1e-6
    )


def test_routing_lists_tasks_by_falling_weight(shared: tuple[Library, SearchEngine]) -> None:
    _, service = shared
    for captions, own in ((BIRDS, "birds"), (CARS, "cars")):
        routing = service.search(captions[0]).routing
        assert {entry.task for entry in routing} == {"birds", "cars"}
        assert routing[0].task == own
        assert routing[0].weight > routing[1].weight
        assert sum(entry.weight for entry in routing) == pytest.approx(1)


def test_stage_times_add_up_to_the_total(shared: tuple[Library, SearchEngine]) -> None:
    _, service = shared
    timing = service.search("a taxi").timing_ms
    assert timing.encode + timing.route + timing.search + timing.merge == pytest.approx(timing.total)
    assert min(timing.encode, timing.route, timing.search, timing.merge) >= 0


@pytest.mark.parametrize("task", ["birds", "tsk_birds"])
def test_query_in_a_known_task_is_encoded_for_that_task_only(
    shared: tuple[Library, SearchEngine], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, service = shared
    calls: list[Sequence[str]] = []
    encode = QueryEncoder.encode_pairs

    def watched(self: QueryEncoder, texts: Sequence[Any], tasks: Sequence[str], mode: str) -> Any:
        calls.append(tuple(tasks))
        return encode(self, texts, tasks, mode)

    monkeypatch.setattr(QueryEncoder, "encode_pairs", watched)
    answer = service.search(f"{CARS[0]}, {task}", k=20, task=task)
    assert {result.task for result in answer.results} == {"birds"}
    assert [(entry.task_id, entry.weight) for entry in answer.routing] == [("tsk_birds", 1.0)]
    assert calls == [("tsk_birds",)]


def test_query_is_encoded_once_and_cached(
    learning: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.refresh()
    calls: list[tuple[Any, ...]] = []
    encode = QueryEncoder.encode_pairs

    def watched(self: QueryEncoder, texts: Sequence[Any], tasks: Sequence[str], mode: str) -> Any:
        calls.append((*sorted(tasks), mode))
        return encode(self, texts, tasks, mode)

    monkeypatch.setattr(QueryEncoder, "encode_pairs", watched)
    first = service.search("a 7")  # no task is likelier
    assert calls == [("tsk_birds", "tsk_cars", "pinned")]
    assert service.search(" a 7 ").results == first.results
    assert len(calls) == 1
    service.search("a 7", mode="latest")
    assert calls[1:] == [("tsk_birds", "tsk_cars", "latest")]
    service.search("a 8", task="cars")
    service.search("a 8")
    assert calls[2:] == [("tsk_cars", "pinned"), ("tsk_birds", "pinned")], "only missing vectors are encoded"
    learning.add_task("sea", SEA)
    service.refresh()
    calls.clear()
    service.search("a 7", routes="all")
    assert sorted(task for *tasks, _ in calls for task in tasks) == ["tsk_birds", "tsk_cars", "tsk_sea"]


def test_catalog_is_read_once_and_missing_videos_are_left_out(
    library: Library, service: SearchEngine
) -> None:
    service.refresh()
    with session_scope(write=True) as session:
        session.query(Video).filter(Video.id == "cars-1").delete()
    calls: list[str] = []

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            calls.append(statement)

    event.listen(engine(), "before_cursor_execute", count)
    try:
        answer = service.search(CARS[1], k=20)
    finally:
        event.remove(engine(), "before_cursor_execute", count)
    assert len(calls) == 1
    assert "cars-1" not in {result.video_id for result in answer.results}
    assert [result.rank for result in answer.results] == [1, 2, 3, 4, 5]


def test_pinned_scores_are_stable_and_latest_scores_change(learning: Library, service: SearchEngine) -> None:
    def scores(mode: str) -> list[float]:
        return [result.score for result in service.search("an owl", task="birds", mode=mode).results]

    service.refresh()
    before = {mode: scores(mode) for mode in ("pinned", "latest")}
    learning.add_task("sea", SEA)
    assert service.refresh()
    assert scores("pinned") == pytest.approx(before["pinned"], abs=1e-6)
    assert scores("latest") != pytest.approx(before["latest"], abs=1e-3)
    assert service.search("an owl").mode == "pinned"


# -- refused requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q", "fields", "field", "message"),
    [
        ("", {}, "q", "empty"),
        (" \n\t ", {}, "q", "empty"),
        ("x" * 10_000, {}, "q", "10000 characters. Use at most 1000"),
        ("a\0b", {}, "q", "not text"),
        ("a\ud800b", {}, "q", "not text"),
        ("a", {"k": 0}, "k", "Request 1 to 20"),
        ("a", {"k": -3}, "k", "Request 1 to 20"),
        ("a", {"k": 10**6}, "k", "1000000 results cannot be returned"),
        ("a", {"k": 10**5000}, "k", "That many results"),
        ("a", {"task": "boats"}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"task": ""}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"mode": "tomorrow"}, "mode", "Use latest or pinned"),
    ],
)
def test_invalid_field_is_reported_with_a_hint(
    shared: tuple[Library, SearchEngine], q: str, fields: dict[str, Any], field: str, message: str
) -> None:
    _, service = shared
    with pytest.raises(InvalidInput) as refused:
        service.search(q, **fields)
    assert [error.field for error in refused.value.errors] == [field]
    assert message in refused.value.detail


def test_all_invalid_fields_are_reported(shared: tuple[Library, SearchEngine]) -> None:
    _, service = shared
    with pytest.raises(InvalidInput) as refused:
        service.search("", k=0)
    assert [error.field for error in refused.value.errors] == ["q", "k"]


def test_method_without_pinned_queries_answers_in_mode_latest(
    configured: Settings, service: SearchEngine, backbone: Backbone
) -> None:
    library = Library(configured, backbone, "finetune")
    library.add_task("birds", BIRDS)
    service.refresh()
    assert configured.query_mode == "pinned"
    assert service.search("an owl").mode == "latest"
    with pytest.raises(InvalidInput, match=r"does not offer mode 'pinned'\. Use latest\."):
        service.search("an owl", mode="pinned")


def test_default_mode_is_the_best_offered_mode(
    configured: Settings, service: SearchEngine, backbone: Backbone
) -> None:
    library = Library(configured, backbone, "drift_adapter")
    library.add_task("birds", BIRDS)
    library.method.maps = -library.method.maps  # type: ignore[attr-defined]
    library.add_task("cars", CARS)
    service.refresh()

    def scores(task: str, mode: str | None = None) -> dict[str, float]:
        answer = service.search("an owl", k=20, task=task, mode=mode)
        assert answer.mode == (mode or "mapped"), "the method does not pin queries"
        return {result.video_id: result.score for result in answer.results}

    assert scores("birds") == scores("birds", "mapped")
    opposite = {video: -score for video, score in scores("birds", "latest").items()}
    assert scores("birds") == pytest.approx(opposite, abs=1e-6)
    assert scores("cars") == pytest.approx(scores("cars", "latest"), abs=1e-6)
    with pytest.raises(InvalidInput, match=r"does not offer mode 'pinned'\. Use latest or mapped\."):
        service.search("an owl", mode="pinned")


@pytest.mark.parametrize(
    "text", ["🚕 → left", "כדור אדום זז שמאלה", "'; DROP TABLE videos; --", "%", "a " * 400]
)
def test_any_unicode_text_is_a_valid_query(shared: tuple[Library, SearchEngine], text: str) -> None:
    _, service = shared
    assert len(service.search(text, k=20).results) == 6


# -- empty library and start-up -----------------------------------------------------------------------------


def test_empty_library_is_ready_and_searches_are_unavailable(
    configured: Settings, service: SearchEngine
) -> None:
    assert not service.readiness().ready
    with pytest.raises(Unavailable, match="still being loaded"):
        service.search("a taxi")
    assert not service.refresh()
    ready = service.readiness()
    assert ready.ready  # otherwise a client that waits for readiness never posts the first task
    assert (ready.tasks, ready.generation) == (0, 0)
    assert "POST /tasks" in ready.checks["index"]
    with pytest.raises(Unavailable, match="no domain has been learned yet; POST /tasks") as refused:
        service.search("a taxi")
    assert refused.value.retry_after > 0
    assert not configured.index_dir.exists()  # reading creates no folder


def test_invalid_fields_are_reported_without_a_snapshot(configured: Settings, service: SearchEngine) -> None:
    with pytest.raises(InvalidInput):
        service.search("", k=5)


def test_process_without_backbone_is_not_ready(
    configured: Settings, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def unavailable(name: str, frames: int | None) -> Backbone:
        attempts.append(name)
        return load_backbone("open_clip:no-such-model/x")

    monkeypatch.setattr(snapshot_manager, "load_backbone", unavailable)
    assert not service.refresh()
    ready = service.readiness()
    assert not ready.ready
    assert "no-such-model" in ready.checks["model"]
    with pytest.raises(Unavailable, match="no-such-model"):
        service.search("a taxi")
    service.refresh()
    assert len(attempts) == 1  # the failed load is not repeated at every poll


# -- sequence of snapshots ----------------------------------------------------------------------------------


def test_unchanged_manifest_is_not_loaded_again(
    library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.refresh()
    snapshot = service.snapshots.current()
    path = library.store.manifest_path
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)  # another file of the same generation
    assert not service.refresh()
    assert service.snapshots.current() is snapshot
    opened: list[int] = []
    monkeypatch.setattr(IndexSnapshot, "open", lambda *arguments, **named: opened.append(1))
    assert not service.refresh()
    assert opened == []


def test_running_search_is_answered_by_its_snapshot(
    library: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.refresh()
    before = library.store.manifest()
    merge = planner.merge_hits

    def swap_first(hits: Any, k: int) -> Any:
        monkeypatch.setattr(planner, "merge_hits", merge)
        library.add_task("sea", SEA)
        assert service.refresh()
        assert service.search_many([SearchQuery(q="a whale", k=1)])[0].results[0].task == "sea"
        return merge(hits, k)

    monkeypatch.setattr(planner, "merge_hits", swap_first)
    answer = service.search(SEA[2], k=20)
    assert (answer.generation, answer.release) == (before.generation, before.release)
    assert {result.task for result in answer.results} == {"birds", "cars"}
    assert len(answer.results) == 6
    assert service.search(SEA[2], k=20).generation == before.generation + 1


def test_concurrent_searches_succeed_while_snapshots_are_replaced(
    library: Library, service: SearchEngine
) -> None:
    service.refresh()
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
            assert service.refresh()
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
    service.refresh()
    before = service.search("an owl")
    manifest = learning.add_task("sea", SEA)
    assert manifest.release is not None
    path = learning.store.release_folder(manifest.release) / "weights.safetensors"
    _flip(path)
    assert not service.refresh()
    assert service.last_error is not None
    assert "weights.safetensors was altered" in service.last_error
    after = service.search("an owl")
    assert (after.generation, after.results) == (before.generation, before.results)
    ready = service.readiness()
    assert ready.ready
    assert "was altered" in ready.checks["index"]
    _flip(path)
    assert not service.refresh()  # the failed load is not repeated at every poll
    pass_retry_interval()
    assert service.refresh()
    assert service.last_error is None
    assert service.search("a whale", task="sea").generation == manifest.generation


def test_release_with_nan_queries_is_refused(learning: Library, service: SearchEngine) -> None:
    service.refresh()
    learning.method.begin_task("tsk_sea", "sea")
    torch.nn.init.constant_(learning.method.tame.a, float("nan"))  # type: ignore[attr-defined]
    learning.method.end_task()
    learning.method.record_task("tsk_sea", "sea", SEA)
    learning.publish("sea", SEA)
    assert not service.refresh()
    assert "NaN or infinity" in str(service.last_error)
    assert service.search("an owl").generation == 2


@pytest.mark.parametrize("text", ["{", "", '{"schema": 99, "checksum": "x"}'])
def test_broken_manifest_is_refused_and_the_current_snapshot_stays(
    library: Library, service: SearchEngine, text: str
) -> None:
    service.refresh()
    library.store.manifest_path.write_text(text)
    assert not service.refresh()
    assert "manifest.json" in str(service.last_error)
    assert service.search("a taxi").generation == 2
    library.store.manifest_path.unlink()
    assert not service.refresh()
    assert "manifest.json is missing" in str(service.last_error)
    assert service.search("a taxi").generation == 2


def test_process_starts_with_an_earlier_release_where_the_newest_is_refused(
    library: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    manifest = library.store.manifest()
    assert manifest.release is not None
    weights = library.store.release_folder(manifest.release) / "weights.safetensors"
    whole = weights.read_bytes()
    _flip(weights)
    assert service.refresh()
    ready = service.readiness()
    assert (ready.ready, ready.tasks, ready.generation) == (True, 1, 2)
    assert ready.release == next(iter(manifest.releases)) != manifest.release
    assert "weights.safetensors was altered" in ready.checks["index"]
    assert "the newest release is refused" in ready.degraded["cars"]
    found = service.search(BIRDS[0], k=10)
    assert found.results[0].video_id == "birds-0"
    assert {result.task for result in found.results} == {"birds"}
    assert found.release == ready.release
    assert "weights.safetensors was altered" in found.degraded["cars"]
    with pytest.raises(Unavailable, match="'cars' cannot be searched: the newest release is refused"):
        service.search("a taxi", task="cars")
    pass_retry_interval()
    assert not service.refresh()
    assert service.search(BIRDS[0]).release == ready.release
    weights.write_bytes(whole)
    pass_retry_interval()
    pass_retry_interval()
    assert service.refresh()
    assert (service.readiness().release, service.readiness().degraded) == (manifest.release, {})
    assert service.search(CARS[1]).results[0].video_id == "cars-1"


def test_lost_manifest_is_not_an_empty_library(
    library: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    aside = library.store.manifest_path.rename(library.store.root / "manifest.aside")
    assert not service.refresh()
    ready = service.readiness()
    assert not ready.ready
    assert "the catalog has 2 published tasks" in ready.checks["index"]
    with pytest.raises(Unavailable, match=r"manifest.json is missing, .* restore the file from a backup"):
        service.search("a taxi")
    aside.rename(library.store.manifest_path)
    pass_retry_interval()
    assert service.refresh()
    assert service.readiness().ready


def test_broken_shard_is_degraded_and_other_shards_are_searched(
    library: Library, service: SearchEngine, pass_retry_interval: Callable[[], None]
) -> None:
    shard = library.store.manifest().shards["tsk_birds"]
    path = library.store.shard_folder(shard.id) / "vectors.faiss"
    _flip(path)
    assert service.refresh()
    answer = service.search("an owl", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert list(answer.degraded) == ["birds"]
    assert "vectors.faiss was altered" in answer.degraded["birds"]
    assert [entry.task for entry in answer.routing] == ["cars"]
    assert list(service.degraded()) == ["tsk_birds"]
    assert (service.readiness().ready, list(service.readiness().degraded)) == (True, ["birds"])
    with pytest.raises(Unavailable, match=r"Task 'birds' cannot be searched: .*was altered"):
        service.search("an owl", task="birds")
    pass_retry_interval()
    snapshot = service.snapshots.current()
    assert not service.refresh()  # still broken
    assert service.snapshots.current() is snapshot
    _flip(path)
    pass_retry_interval()
    assert service.refresh()
    assert service.search("an owl", task="birds").degraded == {}


def test_shard_of_another_encoder_is_not_searched(
    configured: Settings, backbone: Backbone, service: SearchEngine
) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    library.add_task("cars", CARS, fingerprint="f" * 64)
    service.refresh()
    answer = service.search("a taxi", k=20)
    assert {result.task for result in answer.results} == {"birds"}
    assert "made by encoder ffffffffffff" in answer.degraded["cars"]


def test_task_unknown_to_the_release_is_degraded(library: Library, service: SearchEngine) -> None:
    library.method.learned_tasks[:] = [
        ReleaseTask(t.task_id, t.name, t.fingerprint) for t in library.method.learned_tasks[:1]
    ]
    library.method.profiles = RoutingProfiles.from_dense(library.method.profiles.to_dense([0]))
    library.add_task("sea", SEA)
    service.refresh()
    answer = service.search("a taxi")
    assert answer.degraded == {"tsk_cars": "the current release does not know it"}
    assert [entry.task for entry in answer.routing if entry.task != "birds"] == ["sea"]


def test_broken_pinned_release_degrades_its_task_only(learning: Library, service: SearchEngine) -> None:
    older = learning.store.manifest().shards["tsk_birds"].release
    (learning.store.release_folder(older) / "weights.safetensors").unlink()
    assert service.refresh()
    answer = service.search("a taxi", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert "weights.safetensors is missing" in answer.degraded["birds"]


def test_library_without_searchable_shards_is_unavailable(library: Library, service: SearchEngine) -> None:
    shutil.rmtree(library.settings.index_dir / "shards")
    assert not service.refresh()
    with pytest.raises(Unavailable, match=r"no shard can be searched: .*folder is missing"):
        service.search("a taxi")
    assert not service.readiness().ready


def test_library_of_another_backbone_is_refused(library: Library, configured: Settings) -> None:
    torch.manual_seed(1)
    from models.backbones.backbone_loading import tiny_backbone

    other = tiny_backbone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_manager, "load_backbone", lambda name, frames: other)
        service = SearchEngine(configured)
        assert not service.refresh()
    with pytest.raises(Unavailable, match="learned on another backbone"):
        service.search("a taxi")


def test_shard_that_breaks_while_served_is_degraded(library: Library, configured: Settings) -> None:
    service = SearchEngine(
        configured.model_copy(update={"open_bytes": 0})
    )  # shards are closed after every search
    assert service.refresh()
    assert {result.task for result in service.search("an owl").results} == {"birds", "cars"}
    folder = library.store.shard_folder(library.store.manifest().shards["tsk_birds"].id)
    folder.rename(folder.with_suffix(".away"))
    answer = service.search("an owl", k=20)
    assert {result.task for result in answer.results} == {"cars"}
    assert "folder is missing" in answer.degraded["birds"]
    assert (service.readiness().ready, list(service.readiness().degraded)) == (True, ["birds"])
    with pytest.raises(Unavailable, match="folder is missing"):
        service.search("an owl", task="birds")
    assert service.refresh()  # the degraded shard is looked at again at once
    assert (service.readiness().tasks, list(service.readiness().degraded)) == (1, ["birds"])
    assert not service.refresh()
    folder.with_suffix(".away").rename(folder)
    service.snapshots.retry_at = time.monotonic()
    assert service.refresh()
    assert service.readiness().degraded == {}
    assert {result.task for result in service.search("an owl").results} == {"birds", "cars"}


def test_background_thread_loads_new_generations(
    configured: Settings, backbone: Backbone, service: SearchEngine
) -> None:
    service.start()
    library = Library(configured, backbone, "zero_shot")
    for name, captions in (("birds", BIRDS), ("cars", CARS)):
        generation = library.add_task(name, captions).generation
        deadline = time.monotonic() + 30
        while service.readiness().generation < generation and time.monotonic() < deadline:
            time.sleep(0.05)
        assert service.readiness().generation == generation
    assert service.search(CARS[1], k=1).results[0].video_id == "cars-1"
    service.close()
    assert not service.snapshots.is_following


@pytest.mark.parametrize(("configured_threads", "expected"), [(None, 1), (3, 3)])
def test_number_of_torch_threads_is_one_by_default(
    tmp_path: Path,
    settings_factory: Callable[..., Settings],
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
    configured_threads: int | None,
    expected: int,
) -> None:
    monkeypatch.setattr(snapshot_manager, "load_backbone", lambda name, frames: backbone)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    service = SearchEngine(
        settings_factory(tmp_path, **({"torch_threads": configured_threads} if configured_threads else {}))
    )
    service.start()
    service.close()
    assert threads == [expected]


@pytest.fixture
def one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines of a test run one step at a time."""
    monkeypatch.setattr(engine_module, "LANES", 1)


def test_queued_queries_share_a_step_and_a_failing_one_does_not_affect_the_others(
    shared: tuple[Library, SearchEngine], monkeypatch: pytest.MonkeyPatch, one_lane: None
) -> None:
    library, service = shared
    expected = {text: service.search(text).results for text in ("a red bird", "a taxi", "a blue car")}
    search_engine = SearchEngine(library.settings)
    search_engine.refresh()
    started, release, batches = Event(), Event(), []

    def start_slowly(snapshot: SearchSnapshot, requests: Any, *rest: Any) -> Any:
        batches.append([request.text for request in requests])
        started.set()
        assert release.wait(10)
        return start_searches(snapshot, requests, *rest)

    async def search() -> None:
        pending = [asyncio.create_task(search_engine.search_async(SearchQuery(q="a red bird")))]
        assert await asyncio.to_thread(started.wait, 10)
        pending.append(asyncio.create_task(search_engine.search_async(SearchQuery(q="a taxi"))))
        wrong = asyncio.create_task(search_engine.search_async(SearchQuery(q="a boat", mode="unknown")))
        pending.append(asyncio.create_task(search_engine.search_async(SearchQuery(q="a blue car"))))
        while search_engine.scheduler.queue_length < 3:
            await asyncio.sleep(0)
        release.set()
        responses = await asyncio.wait_for(asyncio.gather(*pending), 10)
        assert [response.results for response in responses] == list(expected.values())
        with pytest.raises(InvalidInput, match="unknown"):
            await wrong

    start_searches = engine_module.start_searches
    monkeypatch.setattr(engine_module, "start_searches", start_slowly)
    asyncio.run(search())
    shared_batch = sorted(batches[1])
    assert (batches[0], shared_batch) == (["a red bird"], ["a blue car", "a boat", "a taxi"])
    assert sorted(text for batch in batches[2:] for text in batch) == shared_batch, (
        "after an error, each query is started alone"
    )


def test_running_search_finishes_on_its_snapshot_and_delays_no_later_search(
    library: Library, configured: Settings, monkeypatch: pytest.MonkeyPatch, one_lane: None
) -> None:
    """A search of all domains, one per wave, while a newer release is loaded."""
    monkeypatch.setattr(planner, "MAX_FIRST_WAVE", 1)
    library.add_task("sea", SEA)
    search_engine = SearchEngine(configured)
    assert search_engine.refresh()
    all_tasks = SearchQuery(q="a red bird", k=20, routes="all")
    one_task = SearchQuery(q="a taxi", k=20, task="cars")
    before = search_engine.search("a red bird", 20, routes="all")
    started, release, steps, finished = Event(), Event(), list[tuple[str, list[str]]](), list[str]()

    def advance_slowly(snapshot: SearchSnapshot, states: Any) -> None:
        steps.append((snapshot.release_id, [state.request.text for state in states]))
        started.set()
        assert release.wait(10)
        advance_searches(snapshot, states)

    async def search(query: SearchQuery) -> Any:
        response = await search_engine.search_async(query)
        finished.append(query.q)
        return response

    async def main() -> Any:
        first = asyncio.create_task(search(all_tasks))
        assert await asyncio.to_thread(started.wait, 10)
        library.add_task("more", BIRDS)
        assert search_engine.refresh()
        later = asyncio.create_task(search(one_task))
        wrong = asyncio.create_task(search(SearchQuery(q="a boat", mode="unknown")))
        while search_engine.scheduler.queue_length < 2:
            await asyncio.sleep(0)
        release.set()
        with pytest.raises(InvalidInput, match="unknown"):
            await wrong
        return await asyncio.wait_for(asyncio.gather(first, later), 10)

    advance_searches = engine_module.advance_searches
    monkeypatch.setattr(engine_module, "advance_searches", advance_slowly)
    first, later = asyncio.run(main())
    after = search_engine.search("a taxi", 20, task="cars")
    assert finished == ["a taxi", "a red bird"], "the later search needs only one step"
    assert before.release != after.release
    for response, expected in ((first, before), (later, after)):
        assert response.model_dump(exclude={"timing_ms"}) == expected.model_dump(exclude={"timing_ms"})
    assert steps[:4] == [
        (before.release, ["a red bird"]),
        (before.release, ["a red bird"]),
        (after.release, ["a taxi"]),
        (before.release, ["a red bird"]),
    ]


# -- ready tasks --------------------------------------------------------------------------------------------


@pytest.fixture
def lagging(library: Library, configured: Settings) -> SearchEngine:
    """An engine without a poller whose snapshot lacks the task ``sea``, which the catalog reports as ready."""
    search_engine = SearchEngine(configured)
    assert search_engine.refresh()
    library.add_task("sea", SEA)
    assert search_engine.readiness().tasks == 2
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
    assert lagging.readiness().tasks == 3


def test_clip_search_in_a_ready_task_loads_its_snapshot(
    lagging: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(snapshot: SearchSnapshot, backbone: Backbone, upload: Any, query: SearchQuery, _: Any) -> Any:
        (request,) = parse_requests([query], lagging.settings)
        return resolve_tasks(snapshot, request)

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
    load = SearchSnapshot.load

    def load_slowly(*arguments: Any, **options: Any) -> SearchSnapshot:
        loads.append(threading.current_thread().name)
        Event().wait(0.1)  # lets the other threads arrive
        return load(*arguments, **options)

    monkeypatch.setattr(SearchSnapshot, "load", load_slowly)
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
    with pytest.raises(Unavailable, match="Task 'sea' is ready, and this process has not loaded") as refused:
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

    monkeypatch.setattr(SearchSnapshot, "load", refuse)
    with pytest.raises(Unavailable, match="the release is broken") as refused:
        lagging.search("a whale", task="sea")
    assert int(refused.value.headers["Retry-After"]) == 30
    assert lagging.search("a taxi", task="cars").results


def test_first_published_task_is_searchable_before_the_next_poll(
    configured: Settings, backbone: Backbone
) -> None:
    search_engine = SearchEngine(configured)
    assert not search_engine.refresh()
    Library(configured, backbone, "zero_shot").add_task("birds", BIRDS)
    assert search_engine.search("an owl", task="birds").results
