"""Which tasks a search goes to: nothing is lost with all of them, and what is lost otherwise is what the rule says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.hits import Hit, Hits
from index.vector_ids import moment_ids
from models.routing.router import COSINE_LIMIT
from service.search.snapshots import video_grouping
from service.search.snapshots.video_grouping import nearest
from service.search.text_search.planner import MOST, SLACK, Routes, WavePlanner, parse_routes

Shards = dict[str, list[tuple[int, float]]]  # task → ids and cosines


def _held(shard: list[tuple[int, float]], k: int) -> Hits:
    """The k best of a shard."""
    best = sorted(shard, key=lambda one: (-one[1], one[0]))[:k]
    return Hits(np.array([i for i, _ in best], np.int64), np.array([c for _, c in best], np.float32))


def _travel(course: WavePlanner, shards: Shards, k: int) -> list[list[str]]:
    waves = []
    while wave := course.wave():
        waves.append(wave)
        course.add({task: _held(shards[task], k) for task in wave})
    return waves


def _everything(
    shards: Shards, lifts: dict[str, float], tasks: Sequence[str], k: int, least: float | None
) -> list[Hit]:
    """All videos of some tasks by score, then by the order of the tasks, then by id; an id once, at its best."""
    scored = [
        (-(np.float32(cosine) + np.float32(lifts[task])), place, identifier, task)
        for place, task in enumerate(shards)
        if task in tasks
        for identifier, cosine in shards[task]
    ]
    found: dict[int, Hit] = {}
    for score, _, identifier, task in sorted(scored):
        if identifier not in found:
            found[identifier] = Hit(task, identifier, float(-score))
    return [hit for hit in found.values() if least is None or hit.score >= least][:k]


# Few different values, so that scores tie, and bars are met exactly.
_cosines = st.sampled_from([-1.0, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0])
_shards = st.lists(st.lists(_cosines, max_size=6), min_size=1, max_size=40)
_lifts = st.lists(st.integers(0, 24), min_size=40, max_size=40)


def _library(cosines: list[list[float]], steps: list[int], shared: bool) -> tuple[Shards, dict[str, float]]:
    """Ids are those of one task each, or, where they are shared, claimed by several."""
    number = iter(range(10**6))
    shards = {
        f"t{place}": [(next(number) if not shared else row, cosine) for row, cosine in enumerate(shard)]
        for place, shard in enumerate(cosines)
    }
    return shards, {task: -0.125 * step for task, step in zip(shards, steps, strict=False)}


def _routing(lifts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(lifts.items(), key=lambda one: -one[1])


@settings(max_examples=300, deadline=None)
@given(
    _shards,
    _lifts,
    st.integers(1, 12),
    st.none() | st.sampled_from([-0.5, 0.25, 0.5, 1.25]),
    st.booleans(),
    st.data(),
)
def test_all_gives_what_searching_every_task_gives(
    cosines: list[list[float]],
    steps: list[int],
    k: int,
    least: float | None,
    shared: bool,
    data: st.DataObject,
) -> None:
    shards, lifts = _library(cosines, steps, shared)
    closed = data.draw(st.sets(st.sampled_from(list(shards))))
    open_to = [task for task in shards if task not in closed]
    course = WavePlanner(_routing(lifts), open_to, k, least=least)
    waves = _travel(course, shards, k)
    assert course.hits() == _everything(shards, lifts, open_to, k, least)
    went = [task for wave in waves for task in wave]
    assert len(went) == len(set(went)) == len(course.searched)
    assert not closed & set(went), "where nothing may be found, nothing is encoded"
    assert [lifts[task] for task in went] == sorted((lifts[task] for task in went), reverse=True)


@settings(max_examples=100, deadline=None)
@given(
    _shards,
    _lifts,
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from(["auto", "all", 1, 3]),
)
def test_pages_show_every_video_that_counts_once(
    cosines: list[list[float]], steps: list[int], sizes: list[int], routes: Routes
) -> None:
    """Page by page, each with a course of its own that knows what the first one chose."""
    shards, lifts = _library(cosines, steps, shared=False)
    routing, total = _routing(lifts), sum(map(len, shards.values()))
    chosen: int | None = None
    passed, pages = 0, []
    while passed < total:
        end = passed + sizes[min(len(pages), len(sizes) - 1)]
        course = WavePlanner(routing, list(shards), end + 1, routes=routes, chosen=chosen)
        _travel(course, shards, end + 1)
        pages.append(course.hits()[passed:end])
        chosen, passed = (course.chosen if chosen is None else chosen), end
        if len(course.hits()) <= end:
            break
    found = [hit for page in pages for hit in page]
    # The tasks that the first page went to come first; of a number of them, no other at all.
    first = [task for task, _ in routing[:chosen]] if routes == "auto" else [task for task, _ in routing]
    if isinstance(routes, int):
        level = [lift for _, lift in routing][min(routes, len(routing)) - 1]
        first = [task for task, lift in routing if lift >= level]
    expected = _everything(shards, lifts, first, total, None)
    if routes == "auto":
        expected += _everything(shards, lifts, [t for t in shards if t not in first], total, None)
    assert found == expected


# -- videos with moments ------------------------------------------------------------------------------------

Scenes = dict[str, dict[int, list[float]]]  # task → video → cosines of its whole and of each of its moments


def _by_video(videos: dict[int, list[float]], k: int) -> Hits:
    """The k best videos of a shard, found as the service finds them: in a list of all its vectors."""
    ids = np.concatenate(
        [np.zeros(0, np.int64), *([video, *moment_ids(video, len(c) - 1)] for video, c in videos.items())]
    ).astype(np.int64)
    cosines = np.array([cosine for c in videos.values() for cosine in c], np.float32)
    order = np.lexsort((ids, -cosines))
    (found,) = nearest(
        lambda _, depth: [Hits(ids[order[:depth]], cosines[order[:depth]])],
        1,
        k,
        video_grouping.best_per_video,
    )
    return found


_scenes = st.lists(st.lists(st.lists(_cosines, min_size=1, max_size=7), max_size=5), min_size=1, max_size=25)


@settings(max_examples=200, deadline=None)
@given(
    _scenes,
    _lifts,
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.sampled_from(["auto", "all", 1, 3]),
    st.none() | st.sampled_from([-0.5, 0.25, 0.5]),
    st.data(),
)
def test_with_moments_every_page_is_that_of_the_best_of_each_video(
    cosines: list[list[list[float]]],
    steps: list[int],
    sizes: list[int],
    routes: Routes,
    least: float | None,
    data: st.DataObject,
) -> None:
    """What passes a filter, grouped, over a score, page by page: as where each video has one vector, its best."""
    number = iter(range(10**6))
    scenes: Scenes = {
        f"t{place}": {next(number): own for own in videos} for place, videos in enumerate(cosines)
    }
    every = [video for videos in scenes.values() for video in videos]
    passing = data.draw(st.none() | st.sets(st.sampled_from(every))) if every else None
    if passing is not None:
        scenes = {
            task: {video: own for video, own in videos.items() if video in passing}
            for task, videos in scenes.items()
        }
    best: Shards = {
        task: [(video, max(own)) for video, own in videos.items()] for task, videos in scenes.items()
    }
    lifts = {task: -0.125 * step for task, step in zip(scenes, steps, strict=False)}
    routing, open_to = _routing(lifts), [task for task in scenes if passing is None or scenes[task]]
    total, chosen, passed, found = len(every), None, 0, []
    goes_on = False
    while passed < total:
        end = passed + sizes[min(passed, len(sizes) - 1)]
        course, plain = (
            WavePlanner(routing, open_to, end + 1, least=least, routes=routes, chosen=chosen)
            for _ in range(2)
        )
        while wave := course.wave():
            assert plain.wave() == wave, "the bar is that of videos, not of vectors"
            course.add({task: _by_video(scenes[task], end + 1) for task in wave})
            plain.add({task: _held(best[task], end + 1) for task in wave})
        assert plain.wave() == []
        found += course.hits()[passed:end]
        goes_on = passed > 0
        chosen, passed = (course.chosen if chosen is None else chosen), end
        if len(course.hits()) <= end:
            break
    first = [task for task, _ in routing[:chosen]] if routes == "auto" else list(scenes)
    if isinstance(routes, int):
        level = routing[min(routes, len(routing)) - 1][1]
        first = [task for task, lift in routing if lift >= level]
    expected = _everything(best, lifts, first, total, least)
    if (
        routes == "auto" and goes_on
    ):  # else it ended with those that are likely to have any over the lowest score
        expected += _everything(best, lifts, [t for t in scenes if t not in first], total, least)
    assert found == expected


# -- which tasks count --------------------------------------------------------------------------------------


def test_a_task_is_passed_over_only_when_no_cosine_would_be_enough() -> None:
    shards: Shards = {"near": [(0, 0.5), (1, 0.25)], "far": [(2, 1.0)]}
    for lift, goes in ((0.24 - COSINE_LIMIT, False), (0.26 - COSINE_LIMIT, True)):
        course = WavePlanner([("near", 0.0), ("far", lift)], ["near", "far"], 2)
        assert _travel(course, shards, 2) == [["near"], ["far"]][: 1 + goes]
    course = WavePlanner([("near", 0.0), ("far", -0.5)], ["near", "far"], 5)
    assert len(_travel(course, shards, 5)) == 2, "where too little is found every task matters"


def test_auto_passes_over_what_would_need_a_higher_cosine_than_any_so_far() -> None:
    shards: Shards = {"near": [(0, 0.5), (1, 0.375)], "far": [(2, 0.5)]}
    edge = 0.375 - (0.5 + SLACK)
    for lift, goes in ((edge - 0.01, False), (edge + 0.01, True)):
        course = WavePlanner([("near", 0.0), ("far", lift)], ["near", "far"], 2, routes="auto")
        searched = {task for wave in _travel(course, shards, 2) for task in wave}
        assert ("far" in searched) == goes
    least = WavePlanner([("near", 0.0), ("far", -0.25)], ["near", "far"], 2, routes="auto", least=0.4)
    assert {task for wave in _travel(least, shards, 2) for task in wave} == {"near"}
    assert [hit.id for hit in least.hits()] == [0]


def test_auto_goes_to_no_more_than_it_needs_of_many() -> None:
    """Nothing tells the tasks apart but a trifle: the likeliest are enough, unless they hold too little."""
    shards: Shards = {f"t{n}": [(n, 0.5)] for n in range(100)}
    lifts = {task: -0.0001 * place for place, task in enumerate(shards)}
    enough = WavePlanner(_routing(lifts), list(shards), 5, routes="auto")
    waves = _travel(enough, shards, 5)
    assert [len(wave) for wave in waves] == [8, 8]
    assert enough.chosen == MOST
    many = WavePlanner(_routing(lifts), list(shards), 50, routes="auto")
    _travel(many, shards, 50)
    assert len(many.hits()) == 50
    level = WavePlanner(_routing(dict.fromkeys(shards, -0.3)), list(shards), 5, routes="auto")
    _travel(level, shards, 5)
    assert len(level.searched) == 100, "of those that are level none is less likely"


def test_a_number_of_routes_takes_what_is_level_with_the_last_one_along() -> None:
    """Tasks without captions are level with the likeliest: nothing is known against them."""
    shards: Shards = {task: [(place, 0.1 * place)] for place, task in enumerate("abcd")}
    routing = [("a", 0.0), ("b", 0.0), ("c", -0.01), ("d", -0.02)]
    for routes, expected in ((1, "ab"), (2, "ab"), (3, "abc"), (9, "abcd")):
        course = WavePlanner(routing, list("abcd"), 9, routes=routes)
        _travel(course, shards, 9)
        assert course.searched == set(expected)
        assert {hit.task for hit in course.hits()} == set(expected)


@pytest.mark.parametrize(
    ("asked", "read"),
    [
        ("auto", "auto"),
        ("all", "all"),
        (3, 3),
        ("12", 12),
        (0, None),
        ("0", None),
        (-1, None),
        ("", None),
        ("many", None),
        ("1.5", None),
        ("٣", None),
        (True, None),
        ("9" * 5000, None),
    ],
    ids=str,
)
def test_what_routes_may_be(asked: object, read: Routes | None) -> None:
    assert parse_routes(asked) == read
