"""RWalk: Riemannian walk (Chaudhry et al. 2018, "Riemannian walk for incremental learning").

RWalk combines EWC and SI. The Fisher information is a running average over training rather than a separate pass at the
end (EWC++, equation 6). A score measures how much a weight decreases the loss per distance in KL divergence, that is,
with the Fisher as the metric (equation 7). Scores are accumulated over windows of a few steps, negative ones become
zero, and a task's score is averaged with that of earlier tasks. The importance is Fisher plus score, both normalized to
0..1 (equation 8).

Differences from the paper: a window also ends with every epoch, so that a checkpoint contains no partial window.
Gradients are squared per batch, since a contrastive loss has no value for a single sample, and averaged over a window
before they enter the running average, as in the published code. That code adds half the sum of scores to the earlier
score, where the paper replaces it; this implementation follows the paper. Normalization to 0..1 takes the minimum as
zero, which holds up to rounding: some tokens in the vocabulary are in no caption. The sample memory that the paper adds
is left out, because ctp lists RWalk among the methods without memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.shared.path_integral import PathIntegralMethod
from models.backbones.backbone import Backbone
from trainer.methods.shared.weight_penalty import WeightPenaltyConfig
from trainer.task_data import Clip, Pair


class RwalkConfig(WeightPenaltyConfig):
    """Settings of RWalk; the defaults are those of the paper and its published code."""

    penalty: float = Field(
        default=2.0, ge=0, le=1e12, description="λ; twice that of the paper, whose penalty has no factor 1/2"
    )
    fisher_rate: float = Field(
        default=0.9, gt=0, le=1, description="α of equation 6, share of the newest window"
    )
    window: int = Field(default=50, ge=1, le=10_000, description="Δt of equation 7, steps")
    damping: float = Field(default=1e-3, gt=0, le=1, description="ε of equation 7")


class Rwalk(PathIntegralMethod):
    """Fine-tuning with Fisher information plus path scores as importance.

    Attributes:
        fisher: F, the running average over all steps so far.
        score: s of the earlier tasks.
        path_score: s of the current task.
    """

    name = "rwalk"
    config_class = RwalkConfig
    config: RwalkConfig

    def __init__(self, backbone: Backbone, config: RwalkConfig) -> None:
        super().__init__(backbone, config)
        self.fisher: dict[str, Tensor] = {}
        self.score: dict[str, Tensor] = {}
        self.path_score: dict[str, Tensor] = {}
        # Sums over the current window.
        self._steps = 0
        self._squared_gradients: dict[str, Tensor] = {}
        self._loss_decrease: dict[str, Tensor] = {}
        self._displacement: dict[str, Tensor] = {}

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self.path_score = _zeros(self.penalized_parameters())
        self._open_window()

    def after_step(self) -> None:
        super().after_step()
        self._steps += 1
        if self._steps == self.config.window:
            self._close_window()

    def after_epoch(self, validation: Sequence[Clip]) -> None:
        self._close_window()

    def accumulate(self, name: str, gradient: Tensor, update: Tensor) -> None:
        self._squared_gradients[name] += gradient.square()
        self._loss_decrease[name] -= gradient * update
        self._displacement[name] += update

    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute Ω by equation 8, after s ← (s + s of this task) / 2."""
        self._close_window()
        earlier = self.score
        self.score = {n: (earlier[n] + s) / 2 if n in earlier else s for n, s in self.path_score.items()}
        if not self.fisher:
            return {}
        fisher, score = _normalized(self.fisher), _normalized(self.score)
        return {name: fisher[name] + score[name] for name in fisher}

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.path_score = {}
        self._open_window()

    def stored_statistics(self) -> dict[str, dict[str, Tensor]]:
        return {
            **super().stored_statistics(),
            "fisher": self.fisher,
            "score": self.score,
            "walked": self.path_score,
        }

    # -- internal ---------------------------------------------------------------------------------------

    def _open_window(self) -> None:
        self._steps = 0
        self._squared_gradients, self._loss_decrease, self._displacement = (
            _zeros(self.path_score) for _ in range(3)
        )

    def _close_window(self) -> None:
        """Apply equation 7 with the Fisher from before the window, then equation 6."""
        if not self._steps:
            return
        rate = self.config.fisher_rate
        for name, squares in self._squared_gradients.items():
            newest = squares / self._steps
            fisher = self.fisher.get(name, newest)
            distance = fisher * self._displacement[name].square() / 2
            self.path_score[name] += self._loss_decrease[name].relu() / (distance + self.config.damping)
            self.fisher[name] = rate * newest + (1 - rate) * fisher
        self._open_window()


def _zeros(like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in like.items()}


def _normalized(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Divide all values by the largest in any tensor."""
    largest = max(float(tensor.max()) for tensor in tensors.values())
    return {name: tensor / largest if largest else tensor.clone() for name, tensor in tensors.items()}
