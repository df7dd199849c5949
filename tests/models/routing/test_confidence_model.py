"""What a list of scores tells of its results, and the probabilities made of it."""

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
    familiarity,
)

FITTED = ConfidenceModel("pinned", 0.04, (2.0, 3.0, 4.0, 9.0, 0.5, 1.5), -5.0, 240, 0.04)
scores = st.lists(st.floats(-1, 1), min_size=1, max_size=40).map(
    lambda values: np.array(sorted(values)[::-1])
)


@given(scores, st.floats(0, 12), st.floats(-5, 0))
def test_evidence_is_what_a_loop_finds(found: np.ndarray, known: float, fit: float) -> None:
    rows = confidence_features(found, known, fit)
    head = [float(score) for score in found[:10]]
    for place, row in enumerate(rows):
        score = float(found[place])
        lead = head[0] - head[1] if place == 0 and len(head) > 1 else 0.0
        wanted = [score, lead, score - head[0], score - sum(head) / len(head), known, fit]
        np.testing.assert_allclose(row, wanted, atol=1e-12)


@given(
    scores,
    st.lists(st.floats(0, 50), min_size=RESULT_FEATURES, max_size=RESULT_FEATURES),
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
)
def test_confidence_never_rises_down_a_list(
    found: np.ndarray, rising: list[float], rest: list[float]
) -> None:
    calibrated = ConfidenceModel("pinned", 0.0, (*rising, *rest[:2]), rest[2], 1, 0.0)
    sure = calibrated(found, 3.0, -0.1)
    assert (np.diff(sure) <= 0).all()
    assert ((sure >= 0) & (sure <= 1)).all()


@given(scores)
def test_confidence_does_not_depend_on_how_much_of_a_list_is_asked_for(found: np.ndarray) -> None:
    whole = FITTED(found, 3.0, -0.1)
    for length in range(min(CONFIDENCE_DEPTH, len(found)), len(found)):
        np.testing.assert_array_equal(FITTED(found[:length], 3.0, -0.1), whole[:length])


def test_confidence_is_the_logistic_function() -> None:
    sure = FITTED(np.array([0.5, 0.4]), 4.0, -0.2)
    odds = 2 * 0.5 + 3 * 0.1 + 4 * 0.0 + 9 * 0.05 + 0.5 * 4 - 1.5 * 0.2 - 5
    assert sure[0] == pytest.approx(1 / (1 + math.exp(-odds)))
    assert not len(FITTED(np.empty(0), 4.0, -0.2))


def test_familiarity_is_evidence_per_token_of_the_likeliest_task() -> None:
    assert familiarity(np.array([3.0, 12.0]), 4) == 3.0
    assert familiarity(np.array([3.0]), 0) == familiarity(np.empty(0), 4) == 0.0


def test_it_is_kept_as_json_and_comes_back_the_same() -> None:
    assert ConfidenceModel.from_json(json.loads(json.dumps(FITTED.to_json()))) == FITTED
    assert FITTED.applies_to("pinned", 0.04)
    assert not FITTED.applies_to("latest", 0.04)
    assert not FITTED.applies_to("pinned", 0.0)


@pytest.mark.parametrize(
    "weights", [[1.0] * 5, [1, 1, -1, 1, 1, 1], [1, 1, 1, 1, float("nan"), 1], ["many"] * 6]
)
def test_what_is_no_calibration_is_refused(weights: list[float]) -> None:
    with pytest.raises((ValueError, TypeError)):
        ConfidenceModel.from_json({**FITTED.to_json(), "weights": weights})
