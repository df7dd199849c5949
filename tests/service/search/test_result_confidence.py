"""Confidence of results: computation, independence of pages, and thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from cinestrata_schemas.search import SearchQuery, SearchResult
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import open_query_encoder
from models.routing import DEFAULT_PRIOR
from models.routing.confidence_model import (
    CONFIDENCE_DEPTH,
    DEFAULT_VISUAL_SCORE,
    AnswerModel,
    ConfidenceModel,
    logistic,
)
from service.core.errors import InvalidInput
from service.core.settings import Settings
from service.search.engine import SearchEngine
from tests.service.search.caption_library import BIRDS, CARS, SEA, Library, Served

pytestmark = pytest.mark.usefixtures("no_words")

FITTED = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.2, 1.5), -3.0, 240, 0.04)
ANSWER = AnswerModel((2.0, 0.5, 0.25, 1.5), -4.0, threshold=0.3, reach=0.05, error=0.02)
WORDS = "an owl lands on a branch"


def learn(library: Library) -> None:
    """Add three calibrated tasks of twelve videos, shared by tests that change nothing."""
    library.confidence = FITTED
    for name, captions in (("birds", BIRDS), ("cars", CARS), ("sea", SEA)):
        library.add_task(
            name, [f"{text}{more}" for more in ("", " again", " at night", " in snow") for text in captions]
        )


@pytest.fixture
def service(shared: Served) -> SearchEngine:
    return shared[1]


def test_confidence_equals_the_calibration_of_scores_and_tokens(shared: Served, backbone: Backbone) -> None:
    library, service = shared
    answer = service.search(WORDS, k=30)
    sure = _expected(library, backbone, answer.results)
    assert len(sure) == 30
    np.testing.assert_allclose([result.confidence for result in answer.results], sure, rtol=1e-4)
    assert answer.confidence == pytest.approx(min(1, sure[:CONFIDENCE_DEPTH].sum()), rel=1e-4)
    # Without a model of the answer, there is no statement on matches.
    assert {answer.matches, *(result.matches for result in answer.results)} == {None}


def _visual_scores(results: Sequence[SearchResult], evidence: np.ndarray) -> np.ndarray:
    """Return the scores of results as the calibration sees them: with unbounded evidence for the domains."""
    places = [("birds", "cars", "sea").index(result.task) for result in results]
    weights = evidence - np.log(np.exp(evidence).sum())
    mixed = np.log(np.exp(weights) + 0.2 / len(weights))
    bounded = mixed - mixed.max()
    scores = np.array([result.score for result in results])
    return DEFAULT_VISUAL_SCORE.cosines(scores - bounded[places]) + (DEFAULT_PRIOR * weights)[places]


def _expected(library: Library, backbone: Backbone, results: Sequence[SearchResult]) -> np.ndarray:
    """Return the expected confidences of a list over all tasks, by its scores."""
    state = library.method.release()
    presence = open_query_encoder(
        backbone, state, dict.fromkeys((t.task_id for t in state.tasks), state)
    ).piece_presence([WORDS])[0]
    evidence = presence @ state.profiles.to_dense().T
    familiarity = evidence.max() / presence.sum()
    fit = evidence.max() - np.log(np.exp(evidence).sum())
    # Domains are ranked by bounded evidence, so the confidence could rise down the list.
    return np.minimum.accumulate(
        logistic(FITTED.log_odds(_visual_scores(results, evidence), familiarity, fit))
    )


@pytest.fixture
def with_answer(service: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[AnswerModel], None]:
    """``with_answer(model)`` adds a model of the answer to the served calibration."""
    served = service.snapshots.current()

    def add(answer: AnswerModel) -> None:
        model = replace(FITTED, answer=answer)
        snapshot = served.with_lineages(lambda lineage: replace(lineage, confidence_model=model))
        monkeypatch.setattr(service.snapshots, "current", lambda: snapshot)

    return add


def test_answer_has_the_probability_of_its_model_and_ends_where_scores_fall(
    shared: Served, backbone: Backbone, with_answer: Callable[[AnswerModel], None]
) -> None:
    library, service = shared
    with_answer(ANSWER)
    answer = service.search(WORDS, routes="all", k=36)
    state = library.method.release()
    presence = open_query_encoder(
        backbone, state, dict.fromkeys((t.task_id for t in state.tasks), state)
    ).piece_presence([WORDS])[0]
    profiles = state.profiles.to_dense()
    evidence, coverage = presence @ profiles.T, presence @ (profiles > 0).T
    fit = evidence.max() - np.log(np.exp(evidence).sum())
    scores = _visual_scores(answer.results, evidence)
    features = [scores[0], evidence.max() / presence.sum(), 0.0, coverage.max() / presence.sum()]
    odds = np.array(features) @ np.array(ANSWER.weights) + ANSWER.bias
    assert answer.confidence == pytest.approx(1 / (1 + np.exp(-odds)), rel=1e-4)
    assert answer.matches
    near = (scores >= scores[0] - ANSWER.reach) & (np.arange(len(scores)) < CONFIDENCE_DEPTH)
    assert [result.matches for result in answer.results] == near.tolist()
    assert 1 <= sum(bool(result.matches) for result in answer.results) < 36
    plain = np.minimum.accumulate(logistic(FITTED.log_odds(scores, evidence.max() / presence.sum(), fit)))
    np.testing.assert_allclose([result.confidence for result in answer.results], plain, rtol=1e-4)


def test_text_below_the_threshold_has_no_match(
    service: SearchEngine, with_answer: Callable[[AnswerModel], None]
) -> None:
    with_answer(replace(ANSWER, threshold=1.0))
    answer = service.search(WORDS, k=5)
    assert answer.matches is False
    assert [result.matches for result in answer.results] == [False] * 5
    assert len(service.search(WORDS, k=5, min_confidence=0.0).results) == 5


def test_matches_are_independent_of_k_page_and_thresholds(
    service: SearchEngine, with_answer: Callable[[AnswerModel], None]
) -> None:
    with_answer(replace(ANSWER, reach=0.2))
    whole = service.search(WORDS, routes="all", k=36)
    matches = [result.matches for result in whole.results]
    assert set(matches) == {True, False}
    assert [r.matches for r in service.search(WORDS, routes="all", k=1).results] == matches[:1]
    first = service.search(WORDS, routes="all", k=3)
    second = service.search(WORDS, routes="all", k=40, cursor=first.next_cursor)
    assert [r.matches for r in [*first.results, *second.results]] == matches
    assert first.confidence == second.confidence == whole.confidence
    cut = service.search(WORDS, routes="all", k=36, min_score=whole.results[2].score)
    assert (cut.confidence, [r.matches for r in cut.results]) == (whole.confidence, matches[:3])


def test_confidence_is_independent_of_k_page_and_thresholds(service: SearchEngine) -> None:
    whole = service.search(WORDS, routes="all", k=36)
    sure = [result.confidence for result in whole.results]
    assert sure == sorted(sure, reverse=True)
    assert len(set(sure)) >= 30
    assert [result.confidence for result in service.search(WORDS, routes="all", k=1).results] == sure[:1]
    first = service.search(WORDS, routes="all", k=4)
    second = service.search(WORDS, routes="all", k=9, cursor=first.next_cursor)
    assert [result.confidence for result in [*first.results, *second.results]] == sure[:13]
    assert first.confidence == second.confidence == whole.confidence
    cut = service.search(WORDS, routes="all", k=36, min_score=whole.results[2].score)
    assert [result.confidence for result in cut.results] == sure[:3]
    others = [SearchQuery(q=f"{WORDS} {number}", k=9) for number in range(3)]
    batch = service.search_many([*others, SearchQuery(q=WORDS, routes="all", k=3)])
    np.testing.assert_allclose([result.confidence for result in batch[-1].results], sure[:3], rtol=1e-5)


def test_min_confidence_cuts_the_list(service: SearchEngine) -> None:
    whole = service.search(WORDS, routes="all", k=36)
    least = whole.results[6].confidence
    cut = service.search(WORDS, routes="all", k=36, min_confidence=least)
    assert cut.results == whole.results[:7]
    assert cut.next_cursor is None
    first = service.search(WORDS, routes="all", k=5, min_confidence=least)
    rest = service.search(WORDS, routes="all", k=5, min_confidence=least, cursor=first.next_cursor)
    assert [*first.results, *rest.results] == whole.results[:7]
    assert rest.next_cursor is None
    assert service.search(WORDS, routes="all", min_confidence=1.0).results == []
    assert service.search(WORDS, routes="all", k=36, min_confidence=0.0).results == whole.results
    with pytest.raises(InvalidInput, match="cursor belongs to another search: min_confidence differs"):
        service.search(WORDS, routes="all", k=5, min_confidence=0.001, cursor=first.next_cursor)


def test_other_modes_have_no_confidence(service: SearchEngine) -> None:
    answer = service.search(WORDS, mode="latest")
    assert answer.confidence is None
    assert {result.confidence for result in answer.results} == {None}
    with pytest.raises(InvalidInput, match="calibrated for mode 'pinned'"):
        service.search(WORDS, mode="latest", min_confidence=0.1)
    with pytest.raises(InvalidInput) as caught:
        service.search_many([SearchQuery(q=WORDS), SearchQuery(q=WORDS, mode="latest", min_confidence=0.1)])
    assert [error.field for error in caught.value.errors] == ["queries[1].min_confidence"]


def test_release_without_calibration_has_no_confidence(configured: Settings, backbone: Backbone) -> None:
    library = Library(configured, backbone, "zero_shot")
    library.add_task("birds", BIRDS)
    service = SearchEngine(configured)
    assert service.snapshots.refresh()
    answer = service.search(WORDS)
    assert answer.results[0].confidence is None
    assert answer.confidence is None
    with pytest.raises(InvalidInput, match="not calibrated"):
        service.search(WORDS, min_confidence=0.1)
    library.confidence = FITTED
    library.add_task("cars", CARS)
    assert service.snapshots.refresh()
    assert service.search(WORDS).results[0].confidence is not None
