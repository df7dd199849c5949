"""Results of the search engine: ranking, metadata, routing, and reuse of encoded queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import event

from models.encoders.tower_query_backbone import AdaptedQueryEncoder
from service.catalog.database import engine, session_scope
from service.catalog.tables import Video
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library


def test_best_match_comes_first_with_its_metadata(
    shared: tuple[Library, SearchEngine],
) -> None:
    library, service = shared
    answer = service.search(f"  {CARS[1]} ", k=4)
    assert [result.rank for result in answer.results] == [1, 2, 3, 4]
    best = answer.results[0]
    assert (best.video_id, best.task, best.task_id) == ("cars-1", "cars", "tsk_cars")
    assert (best.captions, best.uri) == ([CARS[1]], "cars/1.mp4")
    assert best.thumbnail_url == "/videos/cars-1/thumbnail"
    assert best.stream_url == "/videos/cars-1/stream"
    assert best.score > 1  # the cosine, and the words
    assert [(text.kind, text.text) for text in best.words] == [("caption", CARS[1])]
    assert [r.score for r in answer.results] == sorted((r.score for r in answer.results), reverse=True)
    assert (answer.release, answer.generation) == (library.store.manifest().release, 2)
    assert answer.query == f"  {CARS[1]} "
    assert answer.degraded == {}


def test_routing_lists_tasks_by_falling_weight(shared: tuple[Library, SearchEngine]) -> None:
    _, service = shared
    for captions, own in ((BIRDS, "birds"), (CARS, "cars")):
        routing = service.search(captions[0]).routing
        assert {entry.task for entry in routing} == {"birds", "cars"}
        assert routing[0].task == own
        assert routing[0].weight > routing[1].weight
        assert sum(entry.weight for entry in routing) == pytest.approx(1)


def test_query_is_encoded_once_and_cached(
    learning: Library, service: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.snapshots.refresh()
    calls: list[tuple[Any, ...]] = []
    encode = AdaptedQueryEncoder.encode_pairs

    def watched(self: AdaptedQueryEncoder, texts: Sequence[Any], tasks: Sequence[str], mode: str) -> Any:
        calls.append((*sorted(tasks), mode))
        return encode(self, texts, tasks, mode)

    monkeypatch.setattr(AdaptedQueryEncoder, "encode_pairs", watched)
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
    service.snapshots.refresh()
    calls.clear()
    service.search("a 7", routes="all")
    assert sorted(task for *tasks, _ in calls for task in tasks) == ["tsk_birds", "tsk_cars", "tsk_sea"]


def test_catalog_is_read_once_and_missing_videos_are_left_out(
    library: Library, service: SearchEngine
) -> None:
    service.snapshots.refresh()
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
    assert len(calls) == 2  # the number of the last edit, and the rows of the results
    assert "cars-1" not in {result.video_id for result in answer.results}
    assert [result.rank for result in answer.results] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("no_words")
def test_pinned_scores_are_stable_and_latest_scores_change(learning: Library, service: SearchEngine) -> None:
    def scores(mode: str) -> list[float]:
        return [result.score for result in service.search("an owl", task="birds", mode=mode).results]

    service.snapshots.refresh()
    before = {mode: scores(mode) for mode in ("pinned", "latest")}
    learning.add_task("sea", SEA)
    assert service.snapshots.refresh()
    assert scores("pinned") == pytest.approx(before["pinned"], abs=1e-6)
    assert scores("latest") != pytest.approx(before["latest"], abs=1e-3)
    assert service.search("an owl").mode == "pinned"
