"""Routing evidence from sentence vectors: how likely a text is given the captions of each task.

Each task's captions are modeled by a normal distribution around their mean. All tasks share one covariance: that of
captions within their tasks, accumulated over tasks, with the covariance of generic texts as its prior. The evidence for
a task is the log-likelihood ratio against generic texts,

    G(q) = (μ − m)ᵀ S⁻¹ (q − (μ + m) / 2)

with the task's mean caption μ, the mean m of generic texts and the shared covariance S (linear discriminant analysis).
A library stores one matrix, and one mean per task. Unlike the evidence of words (:mod:`models.routing.router`), this
evidence understands paraphrases; the two together work better than either alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from models.backbones.backbone_description import TextBackground

Floats = npt.NDArray[np.float32]

# How many captions the covariance of generic texts counts as. Chosen on training captions; 50 to 800 differ by a point.
_BACKGROUND_CAPTIONS = 200


@dataclass(frozen=True)
class CaptionScatter:
    """Scatter of caption vectors around their task's mean, summed over tasks.

    Attributes:
        scatter: Sum of outer products of centered vectors, ``[D, D]``.
        freedom: Number of captions minus number of tasks, ``[]``.
    """

    scatter: Floats
    freedom: Floats

    @classmethod
    def empty(cls, dim: int) -> Self:
        """Start with no captions."""
        return cls(np.zeros((dim, dim), np.float32), np.zeros((), np.float32))

    def add(self, captions: Floats) -> CaptionScatter:
        """Include the captions of another task, ``[n, D]``, n ≥ 1."""
        centered = (captions - captions.mean(axis=0)).astype(np.float64)
        scatter = (self.scatter + centered.T @ centered).astype(np.float32)
        return CaptionScatter(scatter, np.asarray(self.freedom + (len(captions) - 1), np.float32))

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Collect the arrays by name, as a release stores them."""
        return {"scatter": self.scatter, "freedom": self.freedom}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Restore what :meth:`tensors` returned."""
        return cls(tensors["scatter"], tensors["freedom"])

    def precision(self, background: TextBackground) -> npt.NDArray[np.float64]:
        """Invert the shared covariance S, ``[D, D]``."""
        size = len(self.scatter)
        generic = np.linalg.inv(background.precision[:size, :size].astype(np.float64))
        total = self.scatter + _BACKGROUND_CAPTIONS * generic
        covariance = total / (float(self.freedom) + _BACKGROUND_CAPTIONS)
        return np.asarray(np.linalg.inv(covariance), np.float64)


class CaptionEvidence:
    """Evidence that the newest release's text tower gives for every task.

    Args:
        background: Distribution of generic texts.
        means: Mean caption of each task, ``[T, D]``.
        has_mean: Whether each task has captions, ``[T]``; the evidence for the others is 0.
        factor: Factor that scales the evidence.
    """

    def __init__(
        self,
        scatter: CaptionScatter,
        background: TextBackground,
        means: Floats,
        has_mean: npt.NDArray[np.bool_],
        factor: float,
    ) -> None:
        size = len(scatter.scatter)
        generic = background.mean[:size].astype(np.float64)
        centers = np.where(has_mean[:, None], means, generic)
        self._weights = factor * (centers - generic) @ scatter.precision(background)  # [T, D]
        self._biases = -np.vecdot(self._weights, centers + generic) / 2

    def __call__(self, texts: Floats, tasks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Compute the evidence of texts ``[n, ≥ D]`` for tasks at some indices, in nats, ``[n, len(tasks)]``."""
        vectors = texts[:, : self._weights.shape[1]].astype(np.float64)
        # Separate inner products run in this thread, and give the same result whatever the other texts are. Computing
        # them for all tasks and then selecting is cheaper than copying the selected weights.
        evidence = np.vecdot(vectors[:, None], self._weights) + self._biases
        return np.asarray(evidence[:, tasks])
