"""Visual score and confidence: from cosines to log-odds, and from the scores of a result list to a probability.

Confidence is a logistic regression on features of the list. Which scores are good depends on the backbone, the domain
and the text, so the features also tell how far a score is from the others in its list, and whether the library's
routing profiles contain the tokens of the text (Platt, "Probabilistic outputs for support vector machines", Advances in
Large Margin Classifiers, 1999). The model is fitted when a release is made (``trainer.evaluation.confidence_fitting``)
and stored in the release.

Confidence never rises down a list: the score is the only feature that differs between two results, and no feature
derived from it has a negative weight. A minimum confidence therefore cuts a list just as a minimum score does.

A second model estimates whether the library contains the described video at all, from the best score and how well the
library knows the subject and the words. A text has no match if its probability is below one half and below that of
all but a twentieth of the texts with a video, or not above that of all but a twentieth of unrelated texts. The answer
ends where a score is further behind the first one than a described video is in nine tenths of the searches (a split
conformal prediction set: Vovk, Gammerman and Shafer, *Algorithmic Learning in a Random World*, 2005).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from models.routing.router import TextEvidence

Floats = npt.NDArray[np.floating]
_Number = TypeVar("_Number", float, npt.NDArray[np.floating])

CONFIDENCE_DEPTH = 10  # results at the top of a list that the features use, whatever k was requested
RESULT_FEATURES = 4  # features that rise with the score; the others are equal for all results of a list
_FEATURES = RESULT_FEATURES + 2


@dataclass(frozen=True)
class ConfidenceModel:
    """Calibration of a release: a logistic regression on :func:`confidence_features`."""

    mode: str  # query mode of the searches that the model was fitted to
    prior: float  # prior of these searches, cosine per nat of routing evidence
    weights: tuple[float, ...]  # one weight per feature; the first RESULT_FEATURES are not negative
    bias: float  # log-odds when all features are 0
    captions: int  # number of captions that the model was fitted to
    error: float  # cross-validated expected calibration error of the first results, 0..1
    # model of the whole list; None if no texts without an answer were available
    answer: AnswerModel | None = None
    visual: VisualScore | None = None  # visual score of the encoder; None if it was not fitted

    def log_odds(
        self, scores: Floats, familiarity: float, log_weight: float, head: Floats | None = None
    ) -> Floats:
        """Compute the log-odds that each result is relevant, ``[n]``; see :func:`confidence_features`."""
        features = confidence_features(scores, familiarity, log_weight, head)
        return np.asarray(features @ np.array(self.weights) + self.bias)

    def applies_to(self, mode: str, prior: float) -> bool:
        """Check whether the model was fitted to searches with this mode and prior."""
        return mode == self.mode and abs(prior - self.prior) < 1e-9

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON object that a release stores."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ConfidenceModel:
        """Restore what :meth:`to_json` returned; raises KeyError, TypeError or ValueError for invalid fields."""
        weights = tuple(float(weight) for weight in stored["weights"])
        numbers = np.array([*weights, float(stored["bias"]), float(stored["prior"])])
        if len(weights) != _FEATURES or not np.isfinite(numbers).all() or min(weights[:RESULT_FEATURES]) < 0:
            raise ValueError(f"weights {stored['weights']!r} do not belong to a calibration")
        return cls(
            mode=str(stored["mode"]),
            prior=float(stored["prior"]),
            weights=weights,
            bias=float(stored["bias"]),
            captions=int(stored["captions"]),
            error=float(stored["error"]),
            answer=None if stored.get("answer") is None else AnswerModel.from_json(stored["answer"]),
            visual=None if stored.get("visual") is None else VisualScore.from_json(stored["visual"]),
        )


def confidence_features(
    scores: Floats, familiarity: float, log_weight: float, head: Floats | None = None
) -> Floats:
    """Compute the features of each result in a list, ``[n, 6]``.

    The columns are the score; the lead of the first result over the second (0 for the others); the score minus the
    first score (at most 0); the score minus the mean of the head; ``familiarity``; ``log_weight``.

    Args:
        scores: Scores ``[n]``, best first, from the top of the list; at least the first ``CONFIDENCE_DEPTH`` if the
            list has as many. With ``head``, any scores of the list.
        head: The first ``CONFIDENCE_DEPTH`` scores of the list, or all, best first; taken from ``scores`` by default.
        familiarity: Routing evidence per token of the text for the likeliest task, in nats.
        log_weight: Highest log weight of the text among the searched tasks; at most 0.
    """
    scores = np.asarray(scores, np.float64)
    if not len(scores):
        return np.empty((0, _FEATURES))
    head = scores[:CONFIDENCE_DEPTH] if head is None or not len(head) else np.asarray(head, np.float64)
    first, second = head[0], head[1] if len(head) > 1 else head[0]
    lead = np.where(scores >= first, first - second, 0.0)
    ones = np.ones(len(scores))
    return np.stack(
        [scores, lead, scores - first, scores - head.mean(), familiarity * ones, log_weight * ones], axis=1
    )


ANSWER_FEATURES = 4


@dataclass(frozen=True)
class AnswerModel:
    """Probability that a list contains an answer, and how far down the list the answer extends."""

    weights: tuple[float, ...]  # one weight per feature of answer_features, none negative
    bias: float  # log-odds when all features are 0
    threshold: float  # probability from which a text has a match
    reach: float  # how far a score of the answer may be below the first score
    error: float  # cross-validated expected calibration error of the probability, 0..1

    def probability(self, scores: Floats, evidence: TextEvidence) -> float:
        """Estimate the probability that the described video is in the library; see :func:`answer_features`."""
        return float(logistic(answer_features(scores, evidence) @ np.array(self.weights) + self.bias))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> AnswerModel:
        """Restore a model from its fields; errors are those of :meth:`ConfidenceModel.from_json`."""
        weights = tuple(float(weight) for weight in stored["weights"])
        bias, threshold, reach = (float(stored[name]) for name in ("bias", "threshold", "reach"))
        is_finite = np.isfinite([*weights, bias, threshold, reach]).all()
        if len(weights) != ANSWER_FEATURES or not is_finite or min(weights) < 0 or reach < 0:
            raise ValueError(f"weights {stored['weights']!r} do not belong to an answer model")
        return cls(weights, bias, threshold, reach, error=float(stored["error"]))


def logistic(log_odds: Floats) -> Floats:
    """Convert log-odds to probabilities."""
    return np.asarray(1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))


def answer_features(scores: Floats, evidence: TextEvidence) -> Floats:
    """Compute the features of a whole list, ``[4]``; a larger one makes an answer likelier.

    They are the first of the scores ``[n]``, best first, and the text's evidence of words, evidence of captions, and
    coverage.
    """
    first = float(scores[0]) if len(scores) else 0.0
    return np.array([first, evidence.words, evidence.captions, evidence.coverage])


# Fitted, with words and routing, on half of the domains of real clips; benchmarks/RESULTS.md says which.
_SHARE = 0.45
_DEVIATION = 0.5  # of ln β between encoders: a fit to few captions stays near the default
_GRID = np.exp(np.linspace(np.log(0.5), np.log(500), 400))  # β, in nats per cosine


@dataclass(frozen=True)
class VisualScore:
    """The log-odds, from the cosine of their vectors, that a query describes a video rather than an unrelated one.

    Which cosines are high depends on the encoder. The visual score is w (cosine − c), in nats, so it adds to the
    evidence of routing and words, and compares videos of different encoders. c is the mean cosine of videos that a
    caption does not describe. The weight w is fitted to captions whose videos were not learned: the softmax of β cosine
    among such videos has the highest likelihood of the described one (listwise loss: Cao et al., "Learning to rank:
    from pairwise approach to listwise approach", ICML 2007). Since words and the visual score often say the same, w is
    only a share of β. Raises ValueError if the weight is not positive, or a value is not finite.
    """

    weight: float  # nats per cosine, positive
    neutral: float  # cosine that says nothing

    def __post_init__(self) -> None:
        if not (self.weight > 0 and np.isfinite([self.weight, self.neutral]).all()):
            raise ValueError(f"invalid visual score: weight {self.weight}, neutral cosine {self.neutral}")

    def log_odds(self, cosines: _Number) -> _Number:
        """Convert cosines to log-odds, in their precision."""
        return (cosines - self.neutral) * self.weight

    def cosines(self, log_odds: _Number) -> _Number:
        """Invert :meth:`log_odds`."""
        return log_odds / self.weight + self.neutral

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Restore the fields that a release stores; raises KeyError, TypeError or ValueError for invalid ones."""
        return cls(float(stored["weight"]), float(stored["neutral"]))


DEFAULT_VISUAL_SCORE = VisualScore(6.25, 0.15)


def fit_visual_score(described: Sequence[float], others: Sequence[Floats]) -> VisualScore | None:
    """Fit an encoder's visual score to the cosines of each caption with its video and with some other videos, none of
    which was learned with its captions; None without captions.
    """
    pairs = [(cosine, rest) for cosine, rest in zip(described, others, strict=True) if len(rest)]
    if not pairs:
        return None
    prior = np.log(DEFAULT_VISUAL_SCORE.weight / _SHARE)
    loss = 0.5 * ((np.log(_GRID) - prior) / _DEVIATION) ** 2
    for cosine, rest in pairs:
        loss = loss + np.logaddexp.reduce(np.outer(_GRID, np.append(rest, cosine) - cosine), axis=1)
    weight = _SHARE * float(_GRID[loss.argmin()])
    return VisualScore(weight, float(np.mean([np.mean(rest) for _, rest in pairs])))
