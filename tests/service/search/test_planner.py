"""The planner searches every task that can contribute, and leaves out tasks only as its routes allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.arrays import Hit, Hits
from models.routing.confidence_model import VisualScore
from models.routing.router import COSINE_LIMIT
from service.search.search_request import Routes, parse_routes
from service.search.text_search.planner import SEPARATE_ENCODINGS, SHARED_ENCODING, RoundPlanner, best_first

Shards = dict[str, list[tuple[int, float]]]  # task → IDs and cosines
ONE_LINEAGE = [VisualScore(1.0, 0.0)]
LINEAGES = st.sampled_from([ONE_LINEAGE, [VisualScore(1.0, 0.0), VisualScore(4.0, 0.25)]])


def _nearest(shard: list[tuple[int, float]], k: int) -> Hits:
    """Return the k best hits of a shard."""
    best = sorted(shard, key=lambda hit: (-hit[1], hit[0]))[:k]
    return Hits(np.array([i for i, _ in best], np.int64), np.array([c for _, c in best], np.float32))


def _no_words(videos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(len(videos), np.float32), np.zeros(len(videos), np.bool_)


def _planner(
    routing: Sequence[tuple[str, float]],
    searchable: Sequence[str],
    depth: int,
    visuals: Sequence[VisualScore] = ONE_LINEAGE,
    **options: Any,
) -> RoundPlanner:
    """Plan among tasks; those with equal bonuses are likelier the earlier they are listed."""
    bonuses = dict(routing)
    others = [task for task in bonuses if task not in searchable]
    tasks = ["excluded", *searchable, *others]  # in learned order
    listed = list(bonuses)
    return RoundPlanner(
        tasks,
        {task: number for number, task in enumerate(tasks)},
        np.array([bonuses.get(task, -np.inf) for task in tasks]),
        np.array([task in searchable for task in tasks]),
        depth,
        likelihoods=np.array([-listed.index(task) if task in listed else 1.0 for task in tasks]),
        visuals=visuals,
        lineages=np.array([0, *(_lineage(task, visuals) for task in tasks[1:])], np.intp),
        **options,
    )


def _lineage(task: str, visuals: Sequence[VisualScore]) -> int:
    """Return the index of a task's lineage: tasks have them in turn."""
    return int(task[1:]) % len(visuals) if len(visuals) > 1 else 0


def _search(planner: RoundPlanner, shards: Shards, k: int) -> list[list[str]]:
    rounds = []
    while tasks := planner.next_round():
        rounds.append(tasks)
        planner.add_hits({task: _nearest(shards[task], k) for task in tasks}.items(), _no_words)
    return rounds


def _exhaustive(
    shards: Shards,
    bonuses: dict[str, float],
    tasks: Sequence[str],
    k: int,
    min_score: float | None,
    visuals: Sequence[VisualScore] = ONE_LINEAGE,
) -> list[Hit]:
    """Rank all videos of some tasks, best first, then by task order and ID; each ID once, at its best score."""
    scored = [
        (
            -(visuals[_lineage(task, visuals)].log_odds(np.float32(cosine)) + np.float32(bonuses[task])),
            place,
            identifier,
            task,
        )
        for place, task in enumerate(shards)
        if task in tasks
        for identifier, cosine in shards[task]
    ]
    listed: dict[int, Hit] = {}
    for score, _, identifier, task in sorted(scored):
        if identifier not in listed:
            listed[identifier] = Hit(task, identifier, float(-score))
    return [hit for hit in listed.values() if min_score is None or hit.score >= min_score][:k]


# Few distinct values, so that scores tie and thresholds are met exactly.
_cosines = st.sampled_from([-1.0, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])
_shards = st.lists(st.lists(_cosines, max_size=6), min_size=1, max_size=40)
_lifts = st.lists(st.integers(0, 24), min_size=40, max_size=40)


def _library(cosines: list[list[float]], steps: list[int], shared: bool) -> tuple[Shards, dict[str, float]]:
    """Return the shards and lifts. Each ID belongs to one task, or to several tasks where IDs are shared."""
    number = iter(range(10**6))
    shards = {
        f"t{place}": [(next(number) if not shared else row, cosine) for row, cosine in enumerate(shard)]
        for place, shard in enumerate(cosines)
    }
    return shards, {task: -0.125 * step for task, step in zip(shards, steps, strict=False)}


def _routing(bonuses: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(bonuses.items(), key=lambda entry: -entry[1])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    _shards,
    _lifts,
    st.integers(1, 12),
    st.none() | st.sampled_from([-0.5, 0.25, 0.5, 1.25]),
    st.booleans(),
    LINEAGES,
    st.data(),
)
def test_all_routes_equal_an_exhaustive_search(
    cosines: list[list[float]],
    steps: list[int],
    k: int,
    min_score: float | None,
    shared: bool,
    visuals: Sequence[VisualScore],
    data: st.DataObject,
) -> None:
    shards, bonuses = _library(cosines, steps, shared)
    closed = data.draw(st.sets(st.sampled_from(list(shards))))
    searchable = [task for task in shards if task not in closed]
    planner = _planner(_routing(bonuses), searchable, k, min_score=min_score, visuals=visuals)
    rounds = _search(planner, shards, k)
    assert planner.hits == _exhaustive(shards, bonuses, searchable, k, min_score, visuals)
    searched = [task for tasks in rounds for task in tasks]
    assert len(searched) == len(set(searched)) == len(planner.searched)
    assert not closed & set(searched), "tasks without passing videos are not searched"
    if visuals is ONE_LINEAGE:
        searched_bonuses = [bonuses[task] for task in searched]
        assert searched_bonuses == sorted(searched_bonuses, reverse=True)


@settings(max_examples=150, deadline=None)
@given(
    _shards,
    _lifts,
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from(["auto", "all", 1, 3]),
    LINEAGES,
)
def test_pages_contain_every_video_once(
    cosines: list[list[float]],
    steps: list[int],
    sizes: list[int],
    routes: Routes,
    visuals: Sequence[VisualScore],
) -> None:
    """Each page has its own planner, which knows the tasks of the first page."""
    shards, bonuses = _library(cosines, steps, shared=False)
    routing, total = _routing(bonuses), sum(map(len, shards.values()))
    first_page_tasks: int | None = None
    offset, pages = 0, []
    while offset < total:
        end = offset + sizes[min(len(pages), len(sizes) - 1)]
        planner = _planner(
            routing,
            list(shards),
            end + 1,
            routes=routes,
            tasks_in_first_page=first_page_tasks,
            visuals=visuals,
        )
        _search(planner, shards, end + 1)
        pages.append(planner.hits[offset:end])
        first_page_tasks = planner.reached_tasks if first_page_tasks is None else first_page_tasks
        offset = end
        if len(planner.hits) <= end:
            break
    listed = [hit for page in pages for hit in page]
    # Hits of the first page's tasks come first; with a number of routes, no other task is searched.
    first = (
        [task for task, _ in routing[:first_page_tasks]]
        if routes == "auto"
        else [task for task, _ in routing]
    )
    if isinstance(routes, int):
        level = [bonus for _, bonus in routing][min(routes, len(routing)) - 1]
        first = [task for task, bonus in routing if bonus >= level]
    expected = _exhaustive(shards, bonuses, first, total, None, visuals)
    if routes == "auto":
        others = [task for task in shards if task not in first]
        expected += _exhaustive(shards, bonuses, others, total, None, visuals)
    assert listed == expected


# -- selection of tasks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("distinct", [1, 20, 5000])
@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_best_rows_are_the_first_of_the_sorted_ones(size: int, distinct: int) -> None:
    rng = np.random.default_rng(size + distinct)
    values, ties = rng.integers(0, distinct, size).astype(np.float64), rng.integers(0, 9, size) / 2
    values[rng.random(size) < 0.1] = -np.inf
    among = rng.random(size) < 0.8
    ranked = sorted(range(size), key=lambda row: (-values[row], -ties[row], row))
    for count in (1, 3, 48, 5000):
        assert best_first(values, count, ties).tolist() == ranked[:count]
        assert (
            best_first(values, count, ties, among).tolist() == [row for row in ranked if among[row]][:count]
        )


def test_task_is_skipped_only_where_no_cosine_can_reach_the_results() -> None:
    shards: Shards = {"near": [(0, 0.5), (1, 0.25)], "far": [(2, 1.0)]}
    for bonus, is_searched in ((0.24 - COSINE_LIMIT, False), (0.26 - COSINE_LIMIT, True)):
        planner = _planner([("near", 0.0), ("far", bonus)], ["near", "far"], 2)
        assert _search(planner, shards, 2) == [["near"], ["far"]][: 1 + is_searched]
    planner = _planner([("near", 0.0), ("far", -0.5)], ["near", "far"], 5)
    assert len(_search(planner, shards, 5)) == 2, "with too few hits, every task is searched"


def test_auto_skips_tasks_that_need_a_higher_cosine_than_the_likely_bound() -> None:
    shards: Shards = {"near": [(0, 0.5), (1, 0.375)], "far": [(2, 0.5)]}
    edge = 0.375 - (0.5 + SEPARATE_ENCODINGS.cosine_slack)
    for bonus, is_searched in ((edge - 0.01, False), (edge + 0.01, True)):
        planner = _planner([("near", 0.0), ("far", bonus)], ["near", "far"], 2, routes="auto")
        searched = {task for tasks in _search(planner, shards, 2) for task in tasks}
        assert ("far" in searched) == is_searched
    thresholded = _planner([("near", 0.0), ("far", -0.25)], ["near", "far"], 2, routes="auto", min_score=0.4)
    assert {task for tasks in _search(thresholded, shards, 2) for task in tasks} == {"near"}
    assert [hit.id for hit in thresholded.hits] == [0]


def test_auto_limits_the_number_of_likely_tasks() -> None:
    """Lifts are almost equal: the likeliest tasks suffice unless they contain too few videos."""
    shards: Shards = {f"t{n}": [(n, 0.5)] for n in range(100)}
    bonuses = {task: -0.0001 * place for place, task in enumerate(shards)}
    enough = _planner(_routing(bonuses), list(shards), 5, routes="auto")
    rounds = _search(enough, shards, 5)
    assert [len(tasks) for tasks in rounds] == [8, 8]
    assert enough.reached_tasks == SEPARATE_ENCODINGS.max_likely_tasks
    many = _planner(_routing(bonuses), list(shards), 50, routes="auto")
    _search(many, shards, 50)
    assert len(many.hits) == 50
    level = _planner(_routing(dict.fromkeys(shards, -0.3)), list(shards), 5, routes="auto")
    _search(level, shards, 5)
    assert len(level.searched) == 100, "no task of equal bonus is cut off"


def test_number_of_routes_includes_tasks_of_equal_lift() -> None:
    """Tasks without captions have the highest lift, because there is no evidence against them."""
    shards: Shards = {task: [(place, 0.1 * place)] for place, task in enumerate("abcd")}
    routing = [("a", 0.0), ("b", 0.0), ("c", -0.01), ("d", -0.02)]
    for routes, expected in ((1, "ab"), (2, "ab"), (3, "abc"), (9, "abcd")):
        planner = _planner(routing, list("abcd"), 9, routes=routes)
        _search(planner, shards, 9)
        assert planner.searched == set(expected)
        assert {hit.task for hit in planner.hits} == set(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("auto", "auto"), ("all", "all"), (3, 3), ("12", 12)),
        *((value, None) for value in (0, "0", -1, "", "many", "1.5", "٣", True, "9" * 5000)),
    ],
    ids=str,
)
def test_routes_parameter_is_parsed(value: object, expected: Routes | None) -> None:
    assert parse_routes(value) == expected


def test_encoders_with_a_shared_encoding_search_in_few_large_rounds() -> None:
    bonuses = {f"t{n}": -n / 1000 for n in range(120)}
    sizes: list[list[int]] = []
    for limits in (SEPARATE_ENCODINGS, SHARED_ENCODING):
        planner = _planner(_routing(bonuses), list(bonuses), 5, routes="all", limits=limits)
        sizes.append([])
        while tasks := planner.next_round():
            sizes[-1].append(len(tasks))
            planner.add_hits([], _no_words)
    assert sizes == [[8, 8, 16, 32, 56], [24, 96]]
    # The first round takes a few tasks that are less likely.
    bonuses = {f"t{n}": -float(n) for n in range(20)}
    planner = _planner(_routing(bonuses), list(bonuses), 5, routes="all", limits=SHARED_ENCODING)
    assert planner.next_round() == list(bonuses)[: SHARED_ENCODING.min_first_round]


ONE_TASK_AT_FIRST = replace(SHARED_ENCODING, min_first_round=1)


def test_encoders_with_a_shared_encoding_search_more_likely_tasks() -> None:
    bonus = 0.385 - (0.5 + SHARED_ENCODING.cosine_slack)
    hits = Hits(np.array([1, 2]), np.array([0.5, 0.375], np.float32))
    searched = []
    for limits in (SEPARATE_ENCODINGS, ONE_TASK_AT_FIRST):
        planner = _planner([("near", 0.0), ("far", bonus)], ["near", "far"], 2, routes="auto", limits=limits)
        assert planner.next_round() == ["near"]
        planner.add_hits({"near": hits}.items(), _no_words)
        searched.append(planner.next_round())
    assert searched == [[], ["far"]]


@pytest.mark.parametrize(("complete", "expected"), [([1], ["far"]), ([1, 2], [])])
def test_auto_expects_no_higher_cosine_while_complete_videos_fill_the_list(
    complete: list[int], expected: list[str]
) -> None:
    bonus = 0.385 - (0.5 + SHARED_ENCODING.cosine_slack)
    hits = Hits(np.array([1, 2]), np.array([0.5, 0.375], np.float32))
    planner = _planner(
        [("near", 0.0), ("far", bonus)], ["near", "far"], 2, routes="auto", limits=ONE_TASK_AT_FIRST
    )
    assert planner.next_round() == ["near"]
    planner.add_hits(
        {"near": hits}.items(), lambda videos: (np.zeros(2, np.float32), np.isin(videos, complete))
    )
    assert planner.next_round() == expected


@pytest.mark.parametrize("step", [0.0, 0.0001])
def test_auto_searches_fewer_likely_tasks_once_complete_videos_fill_the_list(step: float) -> None:
    bonuses = {f"t{n}": -n * step for n in range(40)}
    planner = _planner(_routing(bonuses), list(bonuses), 16, routes="auto", limits=SHARED_ENCODING)
    number, searched = 1, 0
    while tasks := planner.next_round():
        searched += len(tasks)
        hits = {
            task: Hits(np.array([number + n]), np.float32([0.5 - n / 100])) for n, task in enumerate(tasks)
        }
        planner.add_hits(hits.items(), lambda videos: (np.zeros(len(videos)), np.ones(len(videos), np.bool_)))
        number += len(tasks)
    assert searched == 24
