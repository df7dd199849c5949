"""SI: synaptic intelligence (Zenke et al. 2017, "Continual learning through synaptic intelligence").

During a task, every weight's contribution to the decrease in loss is accumulated: the path integral of the gradient,
ω = −∫ g·dθ, as a running sum over steps (equation 3). At the end of the task, it is divided by the squared distance
that the weight moved, and added to the importance (equation 5).

Differences from the paper: its Ω sums ω unchanged; a weight whose updates increased the loss would be pushed away from
its value, so a negative ω counts as zero, as in published code. The paper's g·θ' is for small steps of gradient
descent; here the steps are AdamW's, with the gradient at the start of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.shared.path_integral import PathIntegralMethod
from models.backbones.backbone import Backbone
from trainer.methods.shared.weight_penalty import WeightPenaltyConfig, add_importance
from trainer.task_data import Pair


class SiConfig(WeightPenaltyConfig):
    """Settings of SI."""

    penalty: float = Field(
        default=0.2, ge=0, le=1e12, description="λ; twice the c of the paper, whose penalty has no factor 1/2"
    )
    damping: float = Field(default=0.1, gt=0, le=1, description="ξ of equation 5")


class Si(PathIntegralMethod):
    """Fine-tuning with each weight's contribution to the decrease in loss as importance.

    Attributes:
        path: ω of the current task.
    """

    name = "si"
    config_class = SiConfig
    config: SiConfig

    def __init__(self, backbone: Backbone, config: SiConfig) -> None:
        super().__init__(backbone, config)
        self.path: dict[str, Tensor] = {}
        self._initial_weights: dict[str, Tensor] = {}  # at the start of the task

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        parameters = self.penalized_parameters().items()
        self._initial_weights = {weight: parameter.detach().clone() for weight, parameter in parameters}
        self.path = {weight: torch.zeros_like(value) for weight, value in self._initial_weights.items()}

    def accumulate(self, name: str, gradient: Tensor, update: Tensor) -> None:
        """Apply equation 3."""
        self.path[name] -= gradient * update

    @torch.no_grad()
    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute Ω by equation 5."""
        contributions = {}
        for name, parameter in self.penalized_parameters().items():
            distance = parameter - self._initial_weights[name]
            contributions[name] = self.path[name].relu() / (distance.square() + self.config.damping)
        return add_importance(self.importance, contributions)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.path, self._initial_weights = {}, {}

    def stored_statistics(self) -> dict[str, dict[str, Tensor]]:
        return {**super().stored_statistics(), "path": self.path}
