"""Filtered searches return exactly the passing videos, with their unfiltered scores."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from cinestrata_schemas.search import SearchQuery, SearchResponse
from models.backbones.backbone import Backbone
from service.core.errors import InvalidInput
from service.core.settings import Settings
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, Library, Served

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
PLACES = ["pond", "Zürich", "1", "true", ""]
TAGS = ["rain", "snow", "night"]
NUMBER = 24  # videos of a task


def _facts(task: int, number: int) -> dict[str, Any]:
    """Return the metadata of a video: values of every kind, each missing in some videos."""
    dice = random.Random(100 * task + number)
    metadata: dict[str, Any] = {
        "place": dice.choice(PLACES),
        "camera": dice.choice([1, 2, 3, 1.0, 2.5, 2**53, 2**53 + 1, True, "1"]),
        "tags": dice.sample(TAGS, dice.randint(0, 3)),
        "live": dice.random() < 0.5,
        "deep": {"not": "searched"},
        "mixed": ["rain", 7, None],
    }
    chosen_fields = {name: value for name, value in metadata.items() if dice.random() < 0.8}
    return {
        "extra": chosen_fields | ({"only here": 1} if task == 1 else {}),
        "duration": dice.choice([None, 0.5, 3.0, 3.0, 60.0]),
    }


FACTS = {name: [_facts(task, n) for n in range(NUMBER)] for task, name in enumerate(("birds", "cars", "sea"))}
ARRIVED = {name: NEW_YEAR + timedelta(days=day) for day, name in enumerate(FACTS)}


def learn(library: Library) -> None:
    """Add three tasks whose videos have the columns of ``FACTS``."""
    for name, about in FACTS.items():
        captions = [f"{BIRDS[n % 3]}, {name} {n}" for n in range(NUMBER)]
        library.add_task(name, captions, arrived=ARRIVED[name], facts=about)


@pytest.fixture
def service(shared: Served) -> SearchEngine:
    return shared[1]


# -- independent reference implementation ---------------------------------------------------------------------


def _is(stored: Any, wanted: Any) -> bool:
    if isinstance(stored, list):
        return any(_is(one, wanted) for one in stored if isinstance(one, str))
    return isinstance(stored, bool) == isinstance(wanted, bool) and stored == wanted


def _holds(stored: Any, condition: Any) -> bool:
    if not isinstance(condition, dict):
        return _is(stored, condition)
    if "any" in condition:
        return any(_is(stored, one) for one in condition["any"])
    if "all" in condition:
        return all(_is(stored, one) for one in condition["all"])
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return False
    return condition.get("min", stored) <= stored <= condition.get("max", stored)


def _passes(video_id: str, query: SearchQuery) -> bool:
    name, number = video_id.split("-")
    about = FACTS[name][int(number)]
    seconds, metadata = about["duration"], about["extra"]
    if query.min_duration is not None and (seconds is None or seconds < query.min_duration):
        return False
    if query.max_duration is not None and (seconds is None or seconds > query.max_duration):
        return False
    if query.arrived_after is not None and ARRIVED[name] < query.arrived_after:
        return False
    if query.arrived_before is not None and ARRIVED[name] >= query.arrived_before:
        return False
    conditions = (query.where or {}).items()
    return all(field in metadata and _holds(metadata[field], condition) for field, condition in conditions)


def _found(answer: SearchResponse) -> list[tuple[str, float]]:
    return [(result.video_id, result.score) for result in answer.results]


FILTERS: list[dict[str, Any]] = [
    {"min_duration": 1},
    {"max_duration": 3},
    {"min_duration": 3, "max_duration": 3},
    {"arrived_after": NEW_YEAR + timedelta(days=1)},
    {"arrived_before": NEW_YEAR + timedelta(days=1)},
    {"arrived_after": NEW_YEAR + timedelta(hours=1), "arrived_before": NEW_YEAR + timedelta(days=2)},
    *({"where": {"place": place}} for place in PLACES),
    *({"where": {"camera": camera}} for camera in (1, 1.0, True, "1", 2**53, 2**53 + 1, 2.5, 99)),
    {"where": {"camera": {"min": 2}}},
    {"where": {"camera": {"max": 2}}},
    {"where": {"camera": {"min": 2, "max": 2.5}}},
    {"where": {"camera": {"min": 2**53 + 1}}},
    {"where": {"camera": {"any": [1, True, "1"]}}},
    {"where": {"tags": "rain"}},
    {"where": {"tags": {"any": ["rain", "snow"]}}},
    {"where": {"tags": {"all": ["rain", "snow"]}}},
    {"where": {"mixed": "rain"}},
    {"where": {"live": False}},
    {"where": {"only here": 1}},
    {"where": {"live": True, "tags": "night", "camera": {"min": 1}}, "max_duration": 10},
]


@pytest.mark.parametrize("chosen", FILTERS, ids=str)
def test_filtered_search_equals_the_unfiltered_search_of_passing_videos(
    service: SearchEngine, chosen: dict[str, Any]
) -> None:
    query = SearchQuery(q="an owl turns", **chosen)
    everything = _found(service.search(query.q, 100))
    assert len(everything) == 3 * NUMBER
    passing = [(video, score) for video, score in everything if _passes(video, query)]
    for k in (1, 5, 100):
        stored = _found(service.search(query.q, k, **chosen))
        assert stored == passing[:k], "fewer than k results only where fewer videos pass"


def test_filter_within_named_tasks(service: SearchEngine) -> None:
    answer = service.search("an owl", 100, ["birds", "sea"], where={"live": True})
    wanted = {
        f"{name}-{n}"
        for name in ("birds", "sea")
        for n in range(NUMBER)
        if FACTS[name][n]["extra"].get("live")
    }
    assert {result.video_id for result in answer.results} == wanted
    assert {entry.task for entry in answer.routing} == {"birds", "sea"}


def test_time_without_zone_is_utc(service: SearchEngine) -> None:
    at = ARRIVED["cars"]
    tasks = [
        {result.task for result in service.search("x", 100, arrived_after=given).results}
        for given in (at, at.replace(tzinfo=None), at.astimezone(timezone(timedelta(hours=9))))
    ]
    assert tasks == [{"cars", "sea"}] * 3


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        ({"min_duration": -1}, "min_duration", "0 or more"),
        ({"max_duration": float("nan")}, "max_duration", "0 or more"),
        ({"max_duration": float("inf")}, "max_duration", "0 or more"),
        ({"min_duration": 5, "max_duration": 4}, "min_duration", "exceeds max_duration"),
        (
            {"arrived_after": NEW_YEAR, "arrived_before": NEW_YEAR.replace(tzinfo=None)},
            "arrived_after",
            "not earlier than arrived_before",
        ),
        (
            {"where": {"speed": 1}},
            "where.speed",
            "Known fields: 'camera', 'live', 'mixed', 'only here', 'place', 'tags'.",
        ),
        ({"where": {"deep": "x"}}, "where.deep", "No video in the searched domains has a field 'deep'"),
        ({"where": {"x" * 5000: 1}}, f"where.{'x' * 100}", "has a field"),
        ({"where": {"camera": {"min": 5, "max": 4}}}, "where.camera", "min exceeds max"),
        ({"where": {"camera": {"min": float("nan")}}}, "where.camera", "not a number"),
        ({"where": {"camera": {"min": True}}}, "where.camera", "not a number"),
        ({"where": {"camera": {"min": "1"}}}, "where.camera", "not a number"),
        ({"where": {"place": {"min": 1}}}, "where.place", "has a number in field 'place'"),
        ({"where": {"camera": float("nan")}}, "where.camera", "not a valid metadata value"),
        ({"where": {"camera": None}}, "where.camera", "not a valid metadata value"),
        ({"where": {"tags": ["rain"]}}, "where.tags", '{"all": ["red", "blue"]}'),
        ({"where": {"place": "x" * 1001}}, "where.place", "1001 characters"),
        ({"where": {"tags": {"any": []}}}, "where.tags", "a list of 1 to 64"),
        ({"where": {"tags": {"any": ["x"] * 65}}}, "where.tags", "a list of 1 to 64"),
        ({"where": {"tags": {"all": [1]}}}, "where.tags", "not a text"),
        ({"where": {"tags": {"any": [["x"]]}}}, "where.tags", "not a value"),
        ({"where": {"tags": {}}}, "where.tags", "not a valid condition"),
        ({"where": {"tags": {"any": ["x"], "min": 1}}}, "where.tags", "not a valid condition"),
        ({"where": {str(n): 1 for n in range(17)}}, "where", "17 fields"),
    ],
)
def test_invalid_filter_is_reported_with_a_hint(
    service: SearchEngine, wrong: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        service.search("x", **wrong)
    assert [error.field for error in refused.value.errors] == [field]
    assert message in refused.value.detail
    with pytest.raises(InvalidInput) as refused:
        service.search_many([SearchQuery(q="x"), SearchQuery.model_construct(q="x", **wrong)])
    assert [error.field for error in refused.value.errors] == [f"queries[1].{field}"]


def test_field_of_unsearched_tasks_is_unknown(service: SearchEngine) -> None:
    assert service.search("x", where={"only here": 1}).results
    with pytest.raises(InvalidInput, match="No video in the searched domains has a field 'only here'"):
        service.search("x", task="birds", where={"only here": 1})


def test_filter_without_metadata_in_the_library_is_refused(configured: Settings, backbone: Backbone) -> None:
    Library(configured, backbone, "zero_shot").add_task("birds", BIRDS)
    service = SearchEngine(configured)
    service.snapshots.refresh()
    with pytest.raises(InvalidInput, match="The videos have no metadata"):
        service.search("x", where={"place": "pond"})


@pytest.mark.parametrize("where", [None, {"live": True}], ids=str)
def test_min_score_cuts_the_ranking(service: SearchEngine, where: dict[str, Any] | None) -> None:
    everything = _found(service.search("an owl", 100, where=where))
    for place in (0, 3, len(everything) - 1):
        score = everything[place][1]
        assert _found(service.search("an owl", 100, where=where, min_score=score)) == everything[: place + 1]
        assert (
            _found(service.search("an owl", 2, where=where, min_score=score))
            == everything[: min(place + 1, 2)]
        )
    assert service.search("an owl", where=where, min_score=100).results == []
