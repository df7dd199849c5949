"""How sure a search is: from the scores of a list to the probability that a result is what the text asks for.

A score alone does not tell: what a good one is depends on the backbone, on the domain and on the text. What a search
knows beside it does: how far a result stands out from the rest of its list, and whether the text's words are among
those that the library has learned. Logistic regression turns a few such numbers into a probability (Platt,
"Probabilistic outputs for support vector machines", Advances in Large Margin Classifiers, 1999). It is fitted when a
release is made (``trainer.evaluation.confidence_fitting``) and kept in it.

Down a list the confidence never rises: all that tells two results of one list apart is the score, and no weight of
what is made of it is negative. A lowest confidence cuts a list as a lowest score does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HEAD", "OF_THE_RESULT", "Confidence", "chance", "evidence", "familiarity"]

Floats = npt.NDArray[np.floating]

HEAD = 10  # results at the head of a list that are looked at, however many are asked for
OF_THE_RESULT = (
    4  # columns of the evidence that rise with the score; the others are the same for a whole list
)


@dataclass(frozen=True)
class Confidence:
    """The calibration of a release.

    Attributes:
        mode: query mode that it holds for.
        prior: cosine per nat of routing evidence, likewise.
        weights: one for each column of :func:`evidence`; the first ``OF_THE_RESULT`` are not negative.
        bias: log odds where all of them are 0.
        captions: how many it was fitted to.
        error: expected calibration error of the first results, cross-validated, 0..1.
    """

    mode: str
    prior: float
    weights: tuple[float, ...]
    bias: float
    captions: int
    error: float

    def __call__(self, scores: Floats, known: float, fit: float) -> Floats:
        """Probabilities ``[n]`` that each result of a list is right; arguments as of :func:`evidence`."""
        return chance(evidence(scores, known, fit) @ np.array(self.weights) + self.bias)

    def holds(self, mode: str, prior: float) -> bool:
        """Whether it was fitted to searches like these."""
        return mode == self.mode and abs(prior - self.prior) < 1e-9

    def to_json(self) -> dict[str, Any]:
        """As a release keeps it."""
        return {**asdict(self), "weights": list(self.weights)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Confidence:
        """What :meth:`to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        weights = tuple(float(weight) for weight in stored["weights"])
        numbers = np.array([*weights, float(stored["bias"]), float(stored["prior"])])
        if len(weights) != _COLUMNS or not np.isfinite(numbers).all() or min(weights[:OF_THE_RESULT]) < 0:
            raise ValueError(f"{stored['weights']!r} are no weights of a calibration")
        return cls(
            str(stored["mode"]),
            float(stored["prior"]),
            weights,
            float(stored["bias"]),
            int(stored["captions"]),
            float(stored["error"]),
        )


_COLUMNS = OF_THE_RESULT + 2


def chance(odds: Floats) -> Floats:
    """Probabilities of log odds."""
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -700, 700))))


def evidence(scores: Floats, known: float, fit: float) -> Floats:
    """What a list tells of its results, ``[n, 6]``.

    The columns: the score; how far the first is ahead of the second; how far the others are behind the first (at most
    0); how far a result is above the mean of the head of the list; ``known`` and ``fit``.

    Args:
        scores: ``[n]``, falling, from the first result of the list on: at least its head, where it is that long.
        known: :func:`familiarity` of the text.
        fit: log weight of the task that the text sounds most like, among those that are searched; at most 0.
    """
    scores = np.asarray(scores, np.float64)
    if not len(scores):
        return np.empty((0, _COLUMNS))
    first, second = scores[0], scores[1] if len(scores) > 1 else scores[0]
    lead = np.zeros(len(scores))
    lead[0] = first - second
    every = np.ones(len(scores))
    return np.stack(
        [scores, lead, scores - first, scores - scores[:HEAD].mean(), known * every, fit * every], axis=1
    )


def familiarity(nats: Floats, tokens: int) -> float:
    """How well a library knows the words of a text: evidence per token, for the task that it sounds most like.

    Args:
        nats: ``[T]`` evidence of the text for each task that is searched (``models.routing.router``).
        tokens: how many different ones the text holds.
    """
    return float(nats.max()) / tokens if tokens and len(nats) else 0.0
