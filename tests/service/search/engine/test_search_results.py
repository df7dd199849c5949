"""Results of the search engine, and requests that it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import event

from service.catalog.database import engine, session_scope
from service.catalog.tables import Video
from service.core.errors import InvalidInput
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, Served


def test_best_match_comes_first_with_its_metadata(shared: Served) -> None:
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


def test_routing_lists_tasks_by_falling_weight(shared: Served) -> None:
    _, service = shared
    for captions, domain in ((BIRDS, "birds"), (CARS, "cars")):
        routing = service.search(captions[0]).routing
        assert {entry.task for entry in routing} == {"birds", "cars"}
        assert routing[0].task == domain
        assert routing[0].weight > routing[1].weight
        assert sum(entry.weight for entry in routing) == pytest.approx(1)


def test_query_is_encoded_once_and_cached(
    learning: Library, service: SearchEngine, encoded: list[list[tuple[str, ...]]]
) -> None:
    def calls() -> list[list[tuple[str, str]]]:
        return [[(task, mode) for task, mode, _ in pairs] for pairs in encoded]

    service.snapshots.refresh()
    encoded.clear()
    first = service.search("a 7")  # no task is likelier
    assert calls() == [[("tsk_birds", "pinned"), ("tsk_cars", "pinned")]]
    assert service.search(" a 7 ").results == first.results
    assert len(encoded) == 1
    service.search("a 7", mode="latest")
    assert calls()[1:] == [[("tsk_birds", "latest"), ("tsk_cars", "latest")]]
    service.search("a 8", task="cars")
    service.search("a 8")
    assert calls()[2:] == [[("tsk_cars", "pinned")], [("tsk_birds", "pinned")]], "others are cached"
    learning.add_task("sea", SEA)
    service.snapshots.refresh()
    encoded.clear()
    service.search("a 7", routes="all")
    assert sorted(task for call in calls() for task, _ in call) == ["tsk_birds", "tsk_cars", "tsk_sea"]


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
    assert len(calls) == 3  # the number of the last edit, later edits, and the rows of the results
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
        ("a", {"k": 10**6}, "k", "1000000 results can't be returned"),
        ("a", {"k": 10**5000}, "k", "That many results"),
        ("a", {"task": "boats"}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"task": ""}, "task", "Searchable tasks: 'birds', 'cars'"),
        ("a", {"mode": "tomorrow"}, "mode", "Use latest or pinned"),
        *(("a", {"moments": moments}, "moments", "Request 0 to 100") for moments in (-1, 101, 10**50)),
        *(
            ("a", {"min_score": score}, "min_score", "not a score")
            for score in (math.nan, math.inf, -math.inf)
        ),
        *(("a", {"min_confidence": p}, "min_confidence", "0 to 1") for p in (-0.1, 1.1, math.nan, math.inf)),
    ],
)
def test_invalid_field_is_reported_with_a_hint(
    shared: Served, q: str, fields: dict[str, Any], field: str, message: str
) -> None:
    _, service = shared
    with pytest.raises(InvalidInput) as refused:
        service.search(q, **fields)
    assert [error.field for error in refused.value.errors] == [field]
    assert message in refused.value.detail


def test_all_invalid_fields_are_reported(shared: Served) -> None:
    _, service = shared
    with pytest.raises(InvalidInput) as refused:
        service.search("", k=0)
    assert [error.field for error in refused.value.errors] == ["q", "k"]


@pytest.mark.parametrize(
    "text", ["🚕 → left", "כדור אדום זז שמאלה", "'; DROP TABLE videos; --", "100 %", "a " * 400]
)
def test_any_unicode_text_is_a_valid_query(shared: Served, text: str) -> None:
    _, service = shared
    assert len(service.search(text, k=20).results) == 6
