"""Confidence of results and of whole lists, and the visual score."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.routing.confidence_model import (
    CONFIDENCE_DEPTH,
    DEFAULT_VISUAL_SCORE,
    RESULT_FEATURES,
    AnswerModel,
    ConfidenceModel,
    VisualScore,
    answer_features,
    confidence_features,
    fit_visual_score,
    logistic,
)
from models.routing.router import TextEvidence

FITTED = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.5, 1.5), -5.0, 240, 0.04)
score_lists = st.lists(st.floats(-1, 1), min_size=1, max_size=40).map(
    lambda values: np.array(sorted(values)[::-1])
)


@given(score_lists, st.floats(0, 12), st.floats(-5, 0))
def test_confidence_features_equal_a_reference_loop(
    scores: np.ndarray, familiarity: float, log_weight: float
) -> None:
    rows = confidence_features(scores, familiarity, log_weight)
    head = [float(score) for score in scores[:10]]
    for index, row in enumerate(rows):
        score = float(scores[index])
        lead = head[0] - head[1] if index == 0 and len(head) > 1 else 0.0
        expected = [score, lead, score - head[0], score - sum(head) / len(head), familiarity, log_weight]
        np.testing.assert_allclose(row, expected, atol=1e-12)


@given(
    score_lists,
    st.lists(st.floats(0, 50), min_size=RESULT_FEATURES, max_size=RESULT_FEATURES),
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
)
def test_confidence_never_rises_down_a_list(
    scores: np.ndarray, rising: list[float], rest: list[float]
) -> None:
    calibrated = ConfidenceModel("pinned", 0.0, (*rising, *rest[:2]), rest[2], 1, 0.0)
    probabilities = logistic(calibrated.log_odds(scores, 3.0, -0.1))
    assert (np.diff(probabilities) <= 0).all()
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


@given(score_lists)
def test_confidence_and_probability_are_independent_of_the_requested_depth(scores: np.ndarray) -> None:
    whole = logistic(FITTED.log_odds(scores, 3.0, -0.1))
    for length in range(min(CONFIDENCE_DEPTH, len(scores)), len(scores)):
        np.testing.assert_array_equal(logistic(FITTED.log_odds(scores[:length], 3.0, -0.1)), whole[:length])
    for length in range(1, len(scores)):
        assert MODEL.probability(scores[:length], EVIDENCE) == MODEL.probability(scores, EVIDENCE)


def test_confidence_is_the_logistic_function_of_the_features() -> None:
    probabilities = logistic(FITTED.log_odds(np.array([0.5, 0.4]), 4.0, -0.2))
    odds = 2 * 0.5 + 3 * 0.1 + 4 * 0.0 + 9 * 0.05 + 0.5 * 4 - 1.5 * 0.2 - 5
    assert probabilities[0] == pytest.approx(1 / (1 + math.exp(-odds)))
    assert not len(logistic(FITTED.log_odds(np.empty(0), 4.0, -0.2)))


def test_confidence_model_applies_to_the_mode_and_weight_of_its_fit() -> None:
    assert FITTED.applies_to("pinned", 0.04)
    assert not FITTED.applies_to("latest", 0.04)
    assert not FITTED.applies_to("pinned", 0.0)


@pytest.mark.parametrize(
    "weights", [[1.0] * 5, [1, 1, -1, 1, 1, 1], [1, 1, 1, 1, float("nan"), 1], ["many"] * 6]
)
def test_invalid_calibration_is_refused(weights: list[float]) -> None:
    with pytest.raises((ValueError, TypeError)):
        ConfidenceModel.from_json({**FITTED.to_json(), "weights": weights})


EVIDENCE = TextEvidence(familiarity=9.0, log_weight=-0.2, words=2.0, captions=-3.0, coverage=0.5)
MODEL = AnswerModel((2.0, 0.5, 0.25, 1.5), -1.0, 0.3, 0.1, 0.02)


def test_probability_is_the_logistic_function_of_first_score_and_evidence() -> None:
    assert answer_features(np.array([0.5, 0.3]), EVIDENCE).tolist() == [0.5, 2.0, -3.0, 0.5]
    odds = 2 * 0.5 + 0.5 * 2 - 0.25 * 3 + 1.5 * 0.5 - 1
    probability = MODEL.probability(np.array([0.5, 0.3]), EVIDENCE)
    assert probability == pytest.approx(1 / (1 + math.exp(-odds)))
    assert 0 < MODEL.probability(np.empty(0), EVIDENCE) < 1


def test_models_round_trip_through_json() -> None:
    for calibrated in (FITTED, replace(FITTED, answer=MODEL)):
        assert ConfidenceModel.from_json(json.loads(json.dumps(calibrated.to_json()))) == calibrated


@pytest.mark.parametrize(
    "invalid",
    [
        {"weights": [1.0] * 6},
        {"weights": [1.0] * 3 + [-1.0]},
        {"bias": float("nan")},
        {"reach": -0.1},
        {"threshold": "high"},
    ],
)
def test_invalid_answer_model_is_refused(invalid: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        AnswerModel.from_json({**asdict(MODEL), **invalid})


_SHARE = 0.45


def _captions(weight: float, count: int, rng: np.random.Generator) -> tuple[list[float], list[np.ndarray]]:
    """Draw the described video of each caption by the softmax of ``weight × cosine`` among eleven."""
    cosines = rng.normal(0.2, 3 / weight, (count, 11))
    odds = weight * cosines
    chosen = (odds + rng.gumbel(size=odds.shape)).argmax(axis=1)
    rows = np.arange(count)
    others = [np.delete(row, column) for row, column in zip(cosines, chosen, strict=True)]
    return cosines[rows, chosen].tolist(), others


@pytest.mark.parametrize("weight", [5.0, 14.0, 100.0])
def test_fit_finds_the_weight_of_the_encoder(weight: float) -> None:
    described, others = _captions(weight, 500, np.random.default_rng(0))
    fitted = fit_visual_score(described, others)
    assert fitted is not None
    assert fitted.weight == pytest.approx(_SHARE * weight, rel=0.25)
    assert fitted.neutral == pytest.approx(np.mean([row.mean() for row in others]))


def test_few_captions_hardly_change_the_default_and_none_fit_nothing() -> None:
    fitted = fit_visual_score([0.9], [np.array([0.0])])
    assert fitted is not None
    assert fitted.weight / DEFAULT_VISUAL_SCORE.weight == pytest.approx(1.0, abs=0.05)
    clear = fit_visual_score([0.6] * 20, [np.array([0.4])] * 20)
    assert clear is not None
    assert clear.weight / DEFAULT_VISUAL_SCORE.weight == pytest.approx(1.44, abs=0.1)
    assert fit_visual_score([], []) is fit_visual_score([0.5], [np.empty(0)]) is None


def test_encoders_with_other_scales_get_equal_scores() -> None:
    described, others = _captions(14.0, 500, np.random.default_rng(1))
    narrow = fit_visual_score([0.1 * c + 0.6 for c in described], [0.1 * row + 0.6 for row in others])
    wide = fit_visual_score(described, others)
    assert narrow is not None
    assert wide is not None
    assert narrow.log_odds(0.1 * 0.5 + 0.6) == pytest.approx(wide.log_odds(0.5), rel=0.1)


def test_scores_are_converted_in_their_precision() -> None:
    visual = VisualScore(8.0, 0.25)
    cosines = np.array([0.25, 0.5], np.float32)
    assert visual.log_odds(cosines).tolist() == [0.0, 2.0]
    assert visual.log_odds(cosines).dtype == np.float32
    assert visual.cosines(visual.log_odds(0.7)) == pytest.approx(0.7)
    assert VisualScore.from_json(asdict(visual)) == visual


@pytest.mark.parametrize(
    ("weight", "neutral"), [(0.0, 0.1), (-1.0, 0.1), (float("nan"), 0.1), (1.0, float("inf"))]
)
def test_impossible_values_are_refused(weight: float, neutral: float) -> None:
    with pytest.raises(ValueError, match="visual score"):
        VisualScore(weight, neutral)
