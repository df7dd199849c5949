"""RWalk: Riemannian walk (Chaudhry et al. 2018, "Riemannian walk for incremental learning").

EWC and SI in one. The Fisher information is a running average over training, not a pass of its own at the end
(EWC++, equation 6). A score tells how much of the loss a weight took off per distance that it moved the model, in
the KL divergence, that is, with the Fisher as the metric (equation 7); scores are gathered over windows of a few
steps, those below zero are set to zero, and the score of a task is averaged with that of the earlier ones. The
importance is Fisher plus score, both brought to 0..1 (equation 8).

What differs: a window ends with every epoch too, so that no half window has to be stored with a checkpoint.
Gradients are squared per batch, since a contrastive loss has no value for a sample alone, and averaged over a
window before the running average takes them, as in the published code. That code adds half of the sum of scores
to the earlier one where the paper replaces it; we follow the paper. Smallest values are taken as zero where
both are brought to 0..1, which they are but for rounding: some token of the vocabulary is in no caption. The memory of
samples that the paper adds is left out, as RWalk stands among the methods without one in ctp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from trainer.methods.shared.weight_penalty import PathPenalty, PenaltyConfig
from trainer.task_data import Clip, Pair

__all__ = ["Rwalk", "RwalkConfig"]


class RwalkConfig(PenaltyConfig):
    """Settings of RWalk; defaults are those of the paper and its published code."""

    penalty: float = Field(
        default=2.0, ge=0, le=1e12, description="λ; twice that of the paper, whose penalty has no half"
    )
    fisher_rate: float = Field(
        default=0.9, gt=0, le=1, description="α of equation 6, share of the newest window"
    )
    window: int = Field(default=50, ge=1, le=10_000, description="Δt of equation 7, steps")
    damping: float = Field(default=1e-3, gt=0, le=1, description="ε of equation 7")


class Rwalk(PathPenalty):
    """Fine-tuning, held back by Fisher information and path scores.

    Attributes:
        fisher: F, running average over all steps so far.
        score: s of the tasks before.
        walked: s of the task that is being learned.
    """

    name = "rwalk"
    config_class = RwalkConfig
    config: RwalkConfig

    def __init__(self, backbone: Backbone, config: RwalkConfig) -> None:
        super().__init__(backbone, config)
        self.fisher: dict[str, Tensor] = {}
        self.score: dict[str, Tensor] = {}
        self.walked: dict[str, Tensor] = {}
        self._steps = 0  # in the current window, as all below
        self._squares: dict[str, Tensor] = {}
        self._gain: dict[str, Tensor] = {}
        self._moved: dict[str, Tensor] = {}

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self.walked = _zeros(self.held())
        self._open_window()

    def after_step(self) -> None:
        super().after_step()
        self._steps += 1
        if self._steps == self.config.window:
            self._close_window()

    def after_epoch(self, validation: Sequence[Clip]) -> None:
        self._close_window()

    def follow(self, name: str, slope: Tensor, step: Tensor) -> None:
        self._squares[name] += slope.square()
        self._gain[name] -= slope * step
        self._moved[name] += step

    def consolidate(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Equation 8, after s ← (s + s of this task) / 2."""
        self._close_window()
        earlier = self.score
        self.score = {n: (earlier[n] + s) / 2 if n in earlier else s for n, s in self.walked.items()}
        if not self.fisher:
            return {}
        fisher, score = _normalised(self.fisher), _normalised(self.score)
        return {name: fisher[name] + score[name] for name in fisher}

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.walked = {}
        self._open_window()

    def kept(self) -> dict[str, dict[str, Tensor]]:
        return {**super().kept(), "fisher": self.fisher, "score": self.score, "walked": self.walked}

    # -- inside -----------------------------------------------------------------------------------------

    def _open_window(self) -> None:
        self._steps = 0
        self._squares, self._gain, self._moved = (_zeros(self.walked) for _ in range(3))

    def _close_window(self) -> None:
        """Equation 7 with the Fisher as it was, then equation 6."""
        if not self._steps:
            return
        rate = self.config.fisher_rate
        for name, squares in self._squares.items():
            newest = squares / self._steps
            fisher = self.fisher.get(name, newest)
            distance = fisher * self._moved[name].square() / 2
            self.walked[name] += self._gain[name].relu() / (distance + self.config.damping)
            self.fisher[name] = rate * newest + (1 - rate) * fisher
        self._open_window()


def _zeros(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in like.items()}


def _normalised(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All values as shares of the largest of them."""
    largest = max(float(tensor.max()) for tensor in named.values())
    return {name: tensor / largest if largest else tensor.clone() for name, tensor in named.items()}
