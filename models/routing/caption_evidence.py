"""Routing evidence of sentence vectors: how likely a text is under the captions of each task.

The captions of a task are modeled by a normal distribution around their mean. All tasks share a covariance: that of
captions within tasks, accumulated over tasks, with the covariance of generic texts as its prior. The evidence of a task
is the log-likelihood ratio to generic texts,

    G(q) = (μ − m)ᵀ S⁻¹ (q − (μ + m) / 2)

with the mean caption μ of the task, the mean m of generic texts and the shared covariance S (linear discriminant
analysis). A library keeps one matrix, and one mean per task. Unlike the evidence of words
(:mod:`models.routing.router`), it covers paraphrases; both together are better than each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from models.backbones.backbone import TextBackground

# Captions that the covariance of generic texts counts for. Chosen on training captions; 50 to 800 differ by one point.
_BACKGROUND_CAPTIONS = 200


@dataclass(frozen=True)
class CaptionScatter:
    """Scatter of caption vectors around the mean of their task, summed over tasks.

    Attributes:
        scatter: Sum of outer products of centered vectors, ``[D, D]`` float32.
        freedom: Number of captions minus number of tasks, ``[]``.
    """

    scatter: Tensor
    freedom: Tensor

    @classmethod
    def empty(cls, dim: int) -> Self:
        """Scatter of no captions."""
        return cls(torch.zeros(dim, dim), torch.zeros(()))

    def add(self, captions: Tensor) -> CaptionScatter:
        """Scatter that includes the captions of a further task, ``[n, D]``, n ≥ 1."""
        centered = (captions - captions.mean(0)).double()
        return CaptionScatter(
            (self.scatter.double() + centered.T @ centered).float(), self.freedom + len(captions) - 1
        )

    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name, as a release stores them."""
        return {"scatter": self.scatter, "freedom": self.freedom}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Scatter from :meth:`tensors`."""
        return cls(tensors["scatter"].cpu(), tensors["freedom"].cpu())

    def precision(self, background: TextBackground) -> Tensor:
        """Inverse of the shared covariance S, ``[D, D]`` float64."""
        size = len(self.scatter)
        generic = torch.linalg.inv(background.precision[:size, :size].double().cpu())
        total = self.scatter.double() + _BACKGROUND_CAPTIONS * generic
        precision: Tensor = torch.linalg.inv(total / (float(self.freedom) + _BACKGROUND_CAPTIONS))
        return precision


class CaptionEvidence:
    """Evidence of the newest release for all tasks.

    Args:
        background: Distribution of generic texts.
        means: Mean caption of each task, ``[D]``; None for a task without one, whose evidence is 0.
    """

    def __init__(
        self,
        scatter: CaptionScatter,
        background: TextBackground,
        means: list[Tensor | None],
        factor: float,
    ) -> None:
        size = len(scatter.scatter)
        generic = background.mean[:size].double().cpu()
        precision = scatter.precision(background)
        centers = torch.stack([generic if mean is None else mean.double().cpu() for mean in means])
        self._weights = factor * (centers - generic) @ precision  # [T, D]
        self._biases = -(self._weights * (centers + generic)).sum(dim=1) / 2

    def __call__(self, texts: Tensor, positions: Tensor) -> Tensor:
        """Evidence ``[n, len(positions)]`` in nats, float64, of text vectors ``[n, ≥ D]`` for tasks at positions."""
        # A product with all tasks and a choice of its columns cost less than a copy of the chosen weights.
        evidence = texts[:, : self._weights.shape[1]].double().cpu() @ self._weights.T + self._biases
        return evidence[:, positions]
