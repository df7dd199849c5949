"""Explanations of results: the parts of a score add up to the score of the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cinestrata_schemas.search import ResultExplanation, SearchQuery
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import ConfidenceModel
from service.core.errors import InvalidInput, NotFound
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, Library, Served

QUERY = "a heron turns left"


def learn(library: Library) -> None:
    library.confidence = ConfidenceModel(
        "pinned", DEFAULT_PRIOR, (1.0, 0.5, 0.5, 0.5, 0.1, 0.1), -1.0, 100, 0.05
    )
    library.add_task("birds", BIRDS, moments={0: ["a heron turns left", "an empty lake"]})
    library.add_task("cars", CARS)


def _explain(service: SearchEngine, video: str, **parameters: Any) -> ResultExplanation:
    query = {"q": QUERY, "k": 10, **parameters}
    return service.explain(video, SearchQuery(**query))


def test_explanation_equals_the_result_of_the_search(shared: Served) -> None:
    response = shared[1].search(QUERY, k=10)
    weights = {entry.task_id: entry.weight for entry in response.routing}
    assert len(response.results) == 6
    for result in response.results:
        explanation = _explain(shared[1], result.video_id)
        assert explanation.rank == result.rank
        assert explanation.score == pytest.approx(result.score, abs=1e-5)
        assert explanation.score == pytest.approx(
            explanation.visual_term + explanation.routing_term + explanation.words_term, abs=1e-5
        )
        neutral = explanation.visual_weight * (explanation.cosine - explanation.neutral_cosine)
        assert explanation.visual_term == pytest.approx(neutral, abs=1e-5)
        assert not explanation.is_fitted
        assert explanation.confidence == pytest.approx(result.confidence, abs=1e-5)
        assert explanation.matches is result.matches is None
        assert explanation.weight == pytest.approx(weights[result.task_id], rel=1e-6)
        assert [moment.model_dump() for moment in explanation.moments] == [
            pytest.approx(moment.model_dump(), abs=1e-5) for moment in result.moments
        ]


def test_best_moment_gives_the_score(shared: Served) -> None:
    explanation = _explain(shared[1], "birds-0")
    assert explanation.cosine > (explanation.video_cosine or 1)
    best = explanation.moments[0]
    assert (best.start, best.end) == (0.0, 20.0)
    assert best.score == pytest.approx(explanation.score, abs=1e-5)


def test_video_outside_the_results_has_a_score_and_no_rank(shared: Served) -> None:
    last = shared[1].search(QUERY, k=10).results[-1]
    explanation = _explain(shared[1], last.video_id, k=2)
    assert (explanation.rank, explanation.confidence, explanation.depth) == (None, None, 2)
    assert explanation.score == pytest.approx(last.score, abs=1e-5)


def test_filters_change_the_rank(shared: Served) -> None:
    alone = _explain(shared[1], "cars-0", task="cars", q=CARS[0])
    assert (alone.rank, alone.weight, alone.routing_term) == (1, 1.0, 0.0)
    assert [entry.task for entry in alone.routing] == ["cars"]
    with pytest.raises(InvalidInput, match=r"task: .*'birds', the video's domain"):
        _explain(shared[1], "birds-1", task="cars")


def test_words_point_to_the_domain_whose_captions_contain_them(shared: Served) -> None:
    words = _explain(shared[1], "birds-0", q="heron taxi qqq").words
    assert [word.text for word in words] == ["heron", "taxi", "qqq"]
    assert [word.known for word in words][:2] == [True, False]
    assert words[0].evidence > 0 > words[1].evidence


def test_release_without_calibration_has_no_confidence(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = (
        shared[1].snapshots.current().with_lineages(lambda lineage: replace(lineage, confidence_model=None))
    )
    monkeypatch.setattr(shared[1].snapshots, "current", lambda: snapshot)
    assert _explain(shared[1], "birds-0").confidence is None


def test_unknown_video_and_invalid_query_are_refused(shared: Served) -> None:
    with pytest.raises(NotFound, match="no video 'nothing'"):
        _explain(shared[1], "nothing")
    with pytest.raises(InvalidInput, match="q: The query is empty"):
        _explain(shared[1], "birds-0", q=" ")
