"""Facets count the domains and metadata values of results, and filter by them as counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cinestrata_schemas.search import Facet
from service.search.engine import SearchEngine
from service.search.video_filters import FACET_FIELDS, FACET_VALUES, count_facets
from tests.service.search.caption_library import BIRDS, Library, Served

NUMBER = 12  # videos of a task
FACTS: dict[str, list[dict[str, Any]]] = {
    name: [
        {
            "place": ["pond", "sky", "pond"][n % 3],
            "tags": [["rain"], ["rain", "snow"], []][n % 3],
            "day": n % 2 == 0,
            "year": 2020 + n % 2,
            "title": f"video {name} {n}",
            "text": "t" * 200,
            "kind": "clip",
            **({"camera": n % 10} if name == "cars" else {}),
            **({"lens": n % 2} if name == "cars" and n < 4 else {}),
        }
        for n in range(NUMBER)
    ]
    for name in ("birds", "cars")
}


def learn(library: Library) -> None:
    """Add two tasks whose videos have the metadata of ``FACTS``."""
    for name, metadata in FACTS.items():
        facts = [{"extra": values} for values in metadata]
        library.add_task(name, [f"{BIRDS[n % 3]}, {n}" for n in range(NUMBER)], facts=facts)


@pytest.fixture
def service(shared: Served) -> SearchEngine:
    return shared[1]


def _facets(service: SearchEngine, ids: list[int]) -> list[Facet]:
    return count_facets(service.read_cache, service.snapshots.current(), np.array(ids, np.int64))


def _values(facets: list[Facet]) -> dict[str, list[tuple[Any, int]]]:
    return {facet.field: [(value.value, value.count) for value in facet.values] for facet in facets}


def _ids(service: SearchEngine, task: str) -> list[int]:
    ids: list[int] = service.snapshots.current().shards[f"tsk_{task}"].ids.tolist()
    return ids


def test_domains_and_frequent_values_are_counted(service: SearchEngine) -> None:
    birds, cars = _ids(service, "birds"), _ids(service, "cars")
    facets = _facets(service, [cars[0], *birds[::-1], 999])
    assert [facet.field for facet in facets] == [
        "task",
        "where.day",
        "where.place",
        "where.year",
        "where.tags",
    ]
    assert _values(facets) == {
        "task": [("birds", 12), ("cars", 1)],
        "where.day": [(True, 7), (False, 6)],
        "where.place": [("pond", 9), ("sky", 4)],
        "where.year": [(2020, 7), (2021, 6)],
        "where.tags": [("rain", 9), ("snow", 4)],
    }


def test_fields_and_values_are_limited(service: SearchEngine) -> None:
    facets = _facets(service, _ids(service, "cars") + _ids(service, "birds"))
    assert len(facets) == 1 + FACET_FIELDS
    assert "where.lens" not in _values(facets)  # of the fewest videos
    facets = _facets(service, _ids(service, "cars"))
    assert _values(facets)["where.camera"] == [(0, 2), (1, 2)]  # other values are those of one video
    assert all(len(facet.values) <= FACET_VALUES for facet in facets)


def test_counts_are_those_of_filtered_searches(service: SearchEngine) -> None:
    ids = _ids(service, "birds") + _ids(service, "cars")
    for field, values in _values(_facets(service, ids)).items():
        for value, count in values:
            condition: dict[str, Any] = (
                {"task": value} if field == "task" else {"where": {field.removeprefix("where."): value}}
            )
            assert len(service.search("a bird", k=100, routes="all", **condition).results) == count


def test_one_video_has_all_its_short_values_and_none_has_no_facet(service: SearchEngine) -> None:
    (first, *_) = _ids(service, "birds")
    values = _values(_facets(service, [first]))
    assert values["task"] == [("birds", 1)]
    assert values["where.place"] == [("pond", 1)]
    assert "where.text" not in values
    assert _facets(service, []) == _facets(service, [12345]) == []
