"""Probability of an answer, and the end of its results."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.routing.confidence_model import AnswerModel, ConfidenceModel, answer_features
from models.routing.router import TextEvidence

EVIDENCE = TextEvidence(familiarity=9.0, log_weight=-0.2, words=2.0, captions=-3.0, coverage=0.5)
MODEL = AnswerModel((2.0, 0.5, 0.25, 1.5), -1.0, 0.3, 0.1, 0.02)
scores = st.lists(st.floats(-1, 1), min_size=1, max_size=30).map(
    lambda values: np.array(sorted(values)[::-1])
)


@given(scores)
def test_features_are_the_first_score_and_the_evidence(found: np.ndarray) -> None:
    assert answer_features(found, EVIDENCE).tolist() == [max(found.tolist()), 2.0, -3.0, 0.5]


def test_probability_is_the_logistic_function_of_the_features() -> None:
    odds = 2 * 0.5 + 0.5 * 2 - 0.25 * 3 + 1.5 * 0.5 - 1
    found = MODEL.probability(np.array([0.5, 0.3]), EVIDENCE)
    assert found == pytest.approx(1 / (1 + math.exp(-odds)))
    assert 0 < MODEL.probability(np.empty(0), EVIDENCE) < 1


@given(scores)
def test_probability_is_independent_of_the_requested_depth(found: np.ndarray) -> None:
    for length in range(1, len(found)):
        assert MODEL.probability(found[:length], EVIDENCE) == MODEL.probability(found, EVIDENCE)


def test_answer_ends_where_scores_leave_the_reach_of_the_first() -> None:
    found = np.array([0.5, 0.45, 0.41, 0.39, 0.1])
    assert MODEL.within_reach(found, 0.5).tolist() == [True, True, True, False, False]
    assert not len(MODEL.within_reach(np.empty(0), 0.5))


def test_answer_model_round_trips_through_json_within_a_calibration() -> None:
    assert AnswerModel.from_json(json.loads(json.dumps(MODEL.to_json()))) == MODEL
    calibrated = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.5, 1.5), -5.0, 240, 0.04, MODEL)
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
        AnswerModel.from_json({**MODEL.to_json(), **invalid})
