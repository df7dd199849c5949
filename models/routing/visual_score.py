"""Visual score: how much likelier a query is, by its vector, if it means a video than if it means an unrelated one.

Which cosines are high depends on the encoder. The visual score is w (cosine − c), in nats, so it adds to the evidence
of routing and words, and compares videos of different encoders. c is the mean cosine of videos that a caption does not
describe. The weight w is fitted to captions whose videos were not learned: the softmax of β cosine among such videos
has the highest likelihood of the described one (listwise loss: Cao et al., "Learning to rank: from pairwise approach to
listwise approach", ICML 2007). Since words and the visual score often say the same, w is only a share of β.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
_Number = TypeVar("_Number", float, npt.NDArray[np.floating])

# Fitted, with words and routing, on half of the domains of real clips; benchmarks/RESULTS.md says which.
_SHARE = 0.45
_DEVIATION = 0.5  # of ln β between encoders: a fit to few captions stays near the default
_GRID = np.exp(np.linspace(np.log(0.5), np.log(500), 400))  # β, in nats per cosine


@dataclass(frozen=True)
class VisualScore:
    """Conversion of cosines to log-odds; raises ValueError for a weight that is not positive, and infinite values.

    Attributes:
        weight: Nats per cosine, positive.
        neutral: Cosine that says nothing.
    """

    weight: float
    neutral: float

    def __post_init__(self) -> None:
        if not (self.weight > 0 and np.isfinite([self.weight, self.neutral]).all()):
            raise ValueError(f"a visual score with weight {self.weight} and neutral cosine {self.neutral}")

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
    """Fit the visual score of an encoder; None without captions.

    Args:
        described: Cosine of the described video, for each caption.
        others: Cosines of some other videos. As the described one, they were not learned with their captions.
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
