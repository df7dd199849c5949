"""SI: synaptic intelligence (Zenke et al. 2017, "Continual learning through synaptic intelligence").

While a task is learned, every weight keeps account of how much its own motion lowered the loss: the path integral of
the gradient, ω = −∫ g·dθ, a running sum over steps (equation 3). At the end of the task it is set against how far
the weight has come, and adds to the importance (equation 5).

What differs: the paper's Ω sums ω as it is. A weight whose motion raised the loss would then be driven away
from its place, so that a negative ω counts as zero, as in published code. The paper's g·θ' is that of small
steps of gradient descent; ours are AdamW's, with the gradient at the beginning of each step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from trainer.methods.shared.weight_penalty import PathPenalty, PenaltyConfig
from trainer.task_data import Pair

__all__ = ["Si", "SiConfig"]


class SiConfig(PenaltyConfig):
    """Settings of SI."""

    penalty: float = Field(
        default=0.2, ge=0, le=1e12, description="λ; twice the c of the paper, whose penalty has no half"
    )
    damping: float = Field(default=0.1, gt=0, le=1, description="ξ of equation 5")


class Si(PathPenalty):
    """Fine-tuning, held back by what each weight has done for the loss.

    Attributes:
        path: ω of the task that is being learned.
    """

    name = "si"
    config_class = SiConfig
    config: SiConfig

    def __init__(self, backbone: Backbone, config: SiConfig) -> None:
        super().__init__(backbone, config)
        self.path: dict[str, Tensor] = {}
        self._start: dict[str, Tensor] = {}  # θ at the start of the task

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self._start = {held: parameter.detach().clone() for held, parameter in self.held().items()}
        self.path = {held: torch.zeros_like(weight) for held, weight in self._start.items()}

    def follow(self, name: str, slope: Tensor, step: Tensor) -> None:
        """Equation 3."""
        self.path[name] -= slope * step

    @torch.no_grad()
    def consolidate(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Equation 5."""
        importance = {}
        for name, parameter in self.held().items():
            moved = parameter - self._start[name]
            found = self.path[name].relu() / (moved.square() + self.config.damping)
            importance[name] = self.importance[name] + found if name in self.importance else found
        return importance

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.path, self._start = {}, {}

    def kept(self) -> dict[str, dict[str, Tensor]]:
        return {**super().kept(), "path": self.path}
