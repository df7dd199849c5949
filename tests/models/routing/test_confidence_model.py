"""Features and probabilities of the confidence model."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.routing.confidence_model import (
    CONFIDENCE_DEPTH,
    RESULT_FEATURES,
    ConfidenceModel,
    confidence_features,
    logistic,
)

FITTED = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.5, 1.5), -5.0, 240, 0.04)
scores = st.lists(st.floats(-1, 1), min_size=1, max_size=40).map(
    lambda values: np.array(sorted(values)[::-1])
)


@given(scores, st.floats(0, 12), st.floats(-5, 0))
def test_confidence_features_equal_a_reference_loop(
    found: np.ndarray, known: float, log_weight: float
) -> None:
    rows = confidence_features(found, known, log_weight)
    head = [float(score) for score in found[:10]]
    for place, row in enumerate(rows):
        score = float(found[place])
        lead = head[0] - head[1] if place == 0 and len(head) > 1 else 0.0
        expected = [score, lead, score - head[0], score - sum(head) / len(head), known, log_weight]
        np.testing.assert_allclose(row, expected, atol=1e-12)


@given(
    scores,
    st.lists(st.floats(0, 50), min_size=RESULT_FEATURES, max_size=RESULT_FEATURES),
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
)
def test_confidence_never_rises_down_a_list(
    found: np.ndarray, rising: list[float], rest: list[float]
) -> None:
    calibrated = ConfidenceModel("pinned", 0.0, (*rising, *rest[:2]), rest[2], 1, 0.0)
    probabilities = logistic(calibrated.log_odds(found, 3.0, -0.1))
    assert (np.diff(probabilities) <= 0).all()
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


@given(scores)
def test_confidence_is_independent_of_the_requested_depth(found: np.ndarray) -> None:
    whole = logistic(FITTED.log_odds(found, 3.0, -0.1))
    for length in range(min(CONFIDENCE_DEPTH, len(found)), len(found)):
        np.testing.assert_array_equal(logistic(FITTED.log_odds(found[:length], 3.0, -0.1)), whole[:length])


def test_confidence_is_the_logistic_function_of_the_features() -> None:
    probabilities = logistic(FITTED.log_odds(np.array([0.5, 0.4]), 4.0, -0.2))
    odds = 2 * 0.5 + 3 * 0.1 + 4 * 0.0 + 9 * 0.05 + 0.5 * 4 - 1.5 * 0.2 - 5
    assert probabilities[0] == pytest.approx(1 / (1 + math.exp(-odds)))
    assert not len(logistic(FITTED.log_odds(np.empty(0), 4.0, -0.2)))


def test_confidence_model_round_trips_through_json() -> None:
    assert ConfidenceModel.from_json(json.loads(json.dumps(FITTED.to_json()))) == FITTED
    assert FITTED.applies_to("pinned", 0.04)
    assert not FITTED.applies_to("latest", 0.04)
    assert not FITTED.applies_to("pinned", 0.0)


@pytest.mark.parametrize(
    "weights", [[1.0] * 5, [1, 1, -1, 1, 1, 1], [1, 1, 1, 1, float("nan"), 1], ["many"] * 6]
)
def test_invalid_calibration_is_refused(weights: list[float]) -> None:
    with pytest.raises((ValueError, TypeError)):
        ConfidenceModel.from_json({**FITTED.to_json(), "weights": weights})
