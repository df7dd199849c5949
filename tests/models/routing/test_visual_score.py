"""The visual score: cosines as log-odds, with a weight fitted to captions."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from models.routing.confidence_model import DEFAULT_VISUAL_SCORE, VisualScore, fit_visual_score

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
