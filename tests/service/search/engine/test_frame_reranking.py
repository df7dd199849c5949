"""Ranking of the first 100 results by frame vectors, compared with the equation in plain Python."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from index.scanning.frame_pooling import TEMPERATURE
from models.backbones.backbone import Backbone
from models.routing.confidence_model import ConfidenceModel
from service.core.errors import InvalidInput
from service.core.schemas import SearchQuery, SearchResult
from service.core.settings import Settings, settings
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, settled

FITTED = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04)
TEXT = "a taxi turns left at the water"
NOUNS = (
    "heron",
    "taxi",
    "whale",
    "ferry",
    "owl",
    "truck",
    "bus",
    "rock",
    "wave",
    "branch",
    "light",
    "starling",
)
VERBS = (
    "turns",
    "stops",
    "lands",
    "stands",
    "breaks",
    "jumps",
    "leaves",
    "passes",
    "waits",
    "sings",
    "burns",
)
MANY = [f"a {noun} {verb} left" for noun in NOUNS for verb in VERBS]  # 132
FRAMES = {
    "birds": [[BIRDS[0], SEA[0]], [BIRDS[1], CARS[0]], [BIRDS[2], BIRDS[2]]],
    "cars": [[CARS[0], CARS[1]], [SEA[1], CARS[1]], [CARS[2], "a taxi turns left"]],
}


@pytest.fixture(scope="module")
def framed(
    tmp_path_factory: pytest.TempPathFactory, backbone: Backbone
) -> Iterator[tuple[Library, SearchEngine]]:
    """A library of birds, cars and 132 further videos with two frames each, and its engine."""
    with settled(tmp_path_factory.mktemp("framed"), backbone, limits__max_results=100) as configured:
        library = Library(configured, backbone, "zero_shot")
        library.add_task("birds", BIRDS, frames=FRAMES["birds"])
        library.add_task("cars", CARS, frames=FRAMES["cars"])
        library.add_task("many", MANY, frames=[[text, MANY[(7 * n) % 132]] for n, text in enumerate(MANY)])
        engine = SearchEngine(configured)
        assert engine.refresh()
        yield library, engine


def _score(query: np.ndarray, frames: np.ndarray) -> float:
    """Cosine of the query with the attention-weighted sum of the frames, in double precision."""
    attention = [math.exp(float(query @ frame) / TEMPERATURE) for frame in frames.astype(np.float64)]
    pooled = sum(a * frame for a, frame in zip(attention, frames.astype(np.float64), strict=True))
    return float(query @ pooled / np.linalg.norm(pooled))


def _positions(results: list[SearchResult]) -> list[tuple[str, float]]:
    return [(result.video_id, result.score) for result in results]


def test_results_are_ranked_by_their_pooled_frames(framed: tuple[Library, SearchEngine]) -> None:
    library, engine = framed
    answer = engine.search(TEXT, k=6, task=["birds", "cars"], rerank="frames")
    weights = {entry.task: entry.weight for entry in answer.routing}
    query = library.features([TEXT])[0]
    expected = {
        f"{task}-{n}": _score(query, library.stored(seen))
        + settings().routing_prior * math.log(weights[task])
        for task, videos in FRAMES.items()
        for n, seen in enumerate(videos)
    }
    assert [r.video_id for r in answer.results] == sorted(expected, key=lambda id: -expected[id])
    assert [r.score for r in answer.results] == pytest.approx(
        sorted(expected.values(), reverse=True), abs=1e-6
    )
    plain = engine.search(TEXT, k=6, task=["birds", "cars"])
    assert [r.video_id for r in plain.results] != [r.video_id for r in answer.results]
    assert {r.video_id for r in plain.results} == {r.video_id for r in answer.results}
    again = engine.search_many([SearchQuery(q=TEXT, k=6, task=["birds", "cars"], rerank="frames")] * 2)
    assert [_positions(each.results) for each in again] == [_positions(answer.results)] * 2


@pytest.mark.parametrize("routes", ["auto", "all"])
def test_only_the_first_hundred_change_and_pages_agree(
    framed: tuple[Library, SearchEngine], routes: str
) -> None:
    _, engine = framed

    def pages(k: int, rerank: str | None) -> list[tuple[str, float]]:
        found: list[SearchResult] = []
        cursor = None
        while True:
            answer = engine.search(TEXT, k=k, routes=routes, rerank=rerank, cursor=cursor)
            found += answer.results
            if (cursor := answer.next_cursor) is None:
                return _positions(found)

    whole, plain = pages(100, "frames"), pages(100, None)
    assert len(whole) == len(plain) > 130
    assert whole[100:] == plain[100:]
    assert {name for name, _ in whole[:100]} == {name for name, _ in plain[:100]}
    assert whole[:100] != plain[:100]
    scores = [score for _, score in whole[:100]]
    assert scores == sorted(scores, reverse=True)
    for k in (7, 48, 99):
        assert pages(k, "frames") == whole


def test_min_score_applies_to_the_new_scores(framed: tuple[Library, SearchEngine]) -> None:
    _, engine = framed
    fields = {"k": 100, "task": ["many"], "rerank": "frames"}
    every = engine.search(TEXT, **fields).results
    bar = every[9].score
    assert engine.search(TEXT, **fields, min_score=bar).results == every[:10]


def test_cursor_belongs_to_its_ranking(framed: tuple[Library, SearchEngine]) -> None:
    _, engine = framed
    cursor = engine.search(TEXT, k=5, rerank="frames").next_cursor
    with pytest.raises(InvalidInput) as caught:
        engine.search(TEXT, k=5, cursor=cursor)
    assert "rerank differs" in str(caught.value.errors)


def test_invalid_value_is_refused(framed: tuple[Library, SearchEngine]) -> None:
    _, engine = framed
    with pytest.raises(InvalidInput) as caught:
        engine.search(TEXT, rerank="words")
    assert caught.value.errors[0].field == "rerank"


def test_equal_scores_are_ordered_by_task_and_id(configured: Settings, backbone: Backbone) -> None:
    library = Library(configured, backbone, "zero_shot")
    same = [[CARS[0], SEA[0]]] * 3
    library.add_task("birds", BIRDS, frames=same)
    engine = SearchEngine(configured)
    engine.refresh()
    answer = engine.search(CARS[0], rerank="frames")
    assert [result.video_id for result in answer.results] == ["birds-0", "birds-1", "birds-2"]
    assert len({result.score for result in answer.results}) == 1


def test_tasks_without_frame_vectors_are_named(configured: Settings, backbone: Backbone) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS, frames=FRAMES["birds"])
    library.add_task("cars", CARS)
    engine = SearchEngine(configured)
    engine.refresh()
    for task in (None, ["cars"], ["birds", "cars"]):
        with pytest.raises(InvalidInput) as caught:
            engine.search(TEXT, task=task, rerank="frames")
        (error,) = caught.value.errors
        assert error.field == "rerank"
        assert "'cars'" in error.message
        assert "'birds'" not in error.message
        assert "frame_vectors" in error.hint
    assert len(engine.search(TEXT, task=["birds"], rerank="frames").results) == 3
    library.store.clear("tsk_cars")
    assert engine.refresh()
    assert len(engine.search(TEXT, rerank="frames").results) == 3, "an emptied task needs no frames"


def test_long_video_keeps_the_score_of_its_best_moment(configured: Settings, backbone: Backbone) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS, frames=FRAMES["birds"], moments={2: [SEA[1], SEA[2]]})
    engine = SearchEngine(configured)
    engine.refresh()
    plain = {result.video_id: result for result in engine.search(SEA[2]).results}
    found = {result.video_id: result for result in engine.search(SEA[2], rerank="frames", moments=0).results}
    assert found["birds-2"].score == plain["birds-2"].score == pytest.approx(1, abs=1e-3)
    assert not found["birds-2"].moments
    listed = engine.search(SEA[2], rerank="frames").results[0]
    assert listed.moments == plain["birds-2"].moments
    query = library.features([SEA[2]])[0]
    for number in (0, 1):
        expected = _score(query, library.stored(FRAMES["birds"][number]))
        assert found[f"birds-{number}"].score == pytest.approx(expected, abs=1e-6)


def test_calibration_does_not_apply(configured: Settings, backbone: Backbone) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.confidence = FITTED
    library.add_task("birds", BIRDS, frames=FRAMES["birds"])
    engine = SearchEngine(configured)
    engine.refresh()
    assert engine.search(TEXT).confidence is not None
    answer = engine.search(TEXT, rerank="frames")
    assert answer.confidence is None
    assert all(result.confidence is None for result in answer.results)
    with pytest.raises(InvalidInput) as caught:
        engine.search(TEXT, rerank="frames", min_confidence=0.1)
    assert caught.value.errors[0].field == "min_confidence"


def test_file_lost_while_it_is_served_degrades_its_task(configured: Settings, backbone: Backbone) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS, frames=FRAMES["birds"])
    library.add_task("cars", CARS, frames=FRAMES["cars"])
    engine = SearchEngine(configured)
    engine.refresh()
    entry = library.store.manifest().shards["tsk_birds"]
    (library.store.shard_folder(entry.id) / "frames.npy").unlink()
    answer = engine.search(TEXT, rerank="frames")
    assert {result.task for result in answer.results} == {"cars"}
    assert "frame vectors cannot be read" in answer.degraded["birds"]
