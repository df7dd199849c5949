"""Answer of a result list: whether the library contains a described video at all, and where its results stop.

The probability of an answer is a logistic regression on facts about the whole list (Platt, "Probabilistic outputs for
support vector machines", Advances in Large Margin Classifiers, 1999): its best score, and how well the library knows
the subject and the words of the text. It is fitted to captions with their video in the library
and to texts without one (``trainer.evaluation.confidence_fitting``).

Two thresholds turn it into plain statements. A text has no match if its probability is below one half and below that
of all but a twentieth of the texts with a video. The results of an answer stop where scores fall further behind the
first score than those of described videos do, in all but a tenth of the searches (a split conformal prediction set:
Vovk, Gammerman and Shafer, *Algorithmic Learning in a Random World*, 2005).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from models.routing.text_evidence import TextEvidence

__all__ = ["ANSWER_FEATURES", "AnswerModel", "answer_features", "logistic"]

Floats = npt.NDArray[np.floating]

ANSWER_FEATURES = 4


@dataclass(frozen=True)
class AnswerModel:
    """Probability that a list contains an answer, and the extent of the answer.

    Attributes:
        weights: One weight per feature of :func:`answer_features`, none negative.
        bias: Log odds if all features are 0.
        threshold: Probability from which a text has a match.
        reach: Largest distance of a score to the first score of the list within the answer.
        error: Cross-validated expected calibration error of the probability, 0..1.
    """

    weights: tuple[float, ...]
    bias: float
    threshold: float
    reach: float
    error: float

    def probability(self, scores: Floats, evidence: TextEvidence) -> float:
        """Probability that the library contains a described video; arguments of :func:`answer_features`."""
        return float(logistic(answer_features(scores, evidence) @ np.array(self.weights) + self.bias))

    def within_reach(self, scores: Floats) -> npt.NDArray[np.bool_]:
        """Whether each result is near enough to the first one of its list to belong to the answer, ``[n]``.

        Args:
            scores: Scores ``[n]`` from the first result of the list on, descending.
        """
        return np.asarray(scores >= scores[:1] - self.reach)

    def to_json(self) -> dict[str, Any]:
        """JSON object of the model, as stored in a release."""
        return {**asdict(self), "weights": list(self.weights)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> AnswerModel:
        """Model of a JSON object from :meth:`to_json`.

        Raises:
            KeyError, TypeError, ValueError: A field is missing, of another type, or out of range.
        """
        weights = tuple(float(weight) for weight in stored["weights"])
        bias, threshold, reach = (float(stored[name]) for name in ("bias", "threshold", "reach"))
        is_finite = np.isfinite([*weights, bias, threshold, reach]).all()
        if len(weights) != ANSWER_FEATURES or not is_finite or min(weights) < 0 or reach < 0:
            raise ValueError(f"weights {stored['weights']!r} are not those of an answer model")
        return cls(weights, bias, threshold, reach, float(stored["error"]))


def logistic(log_odds: Floats) -> Floats:
    """Probabilities of log odds."""
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))


def answer_features(scores: Floats, evidence: TextEvidence) -> Floats:
    """Features of a list, ``[4]``, each of which is larger where an answer is likelier.

    These are the first score, the evidence of words and captions, and the coverage.

    Args:
        scores: Scores ``[n]``, descending from the first result of the list.
        evidence: Evidence of the text for the searched tasks.
    """
    first = float(scores[0]) if len(scores) else 0.0
    return np.array([first, evidence.words, evidence.captions, evidence.coverage])
