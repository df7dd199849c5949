"""AFEC: active forgetting with synaptic expansion-convergence (Wang et al. 2021, "AFEC: active forgetting of negative
transfer in continual learning"), on top of EWC; the row of that name in table 1 of ctp.

EWC keeps weights near those of earlier tasks even where that hinders the new task. AFEC trains a second set of weights
on the new task alone (expansion), and pulls the model's weights toward both sets (convergence):

- θ_e minimizes L(θ_e), the loss of the task, without a penalty. F_e is its Fisher information on the task.
- θ minimizes L(θ) + λ/2 Σ_k Ω_k (θ_k − θ*_k)² + λ_e/2 Σ_k F_e,k (θ_k − θ_e,k)² (equation 10), with Ω and θ* of EWC.

θ_e exists only during a task, and the first task has none.

Differences from the paper: θ_e starts from the pre-trained weights in every task, since pre-training is what
initializes a tower; the published code trains its initial θ_e further in every task, and the code of ctp starts from
the newest θ. As in both, θ_e and θ are trained in turns rather than one after the other: each step updates both, and an
epoch's penalty uses θ_e and F_e from the end of the previous epoch, so the first epoch has none. The gradients of both
are clipped together. F_e and Ω are computed on small batches, and Ω is a sum over the tasks
(``benchmarks.rivals.ewc``), where both codes average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.ewc import Ewc, EwcConfig
from models.backbones.backbone import Backbone
from trainer.task_data import Pair

_EXPANDED = "expanded"


class AfecConfig(EwcConfig):
    """Settings of AFEC."""

    expansion_penalty: float = Field(
        default=400.0, ge=0, le=1e12, description="λ_e; the code of ctp uses λ / 5000"
    )


class Afec(Ewc):
    """EWC with a second penalty, which pulls toward weights trained on the current task alone.

    Attributes:
        expanded: Towers with the weights θ_e; None before the second task and between tasks.
        expanded_fisher: F_e at the end of the last epoch.
        expanded_anchor: θ_e at the end of the last epoch.
    """

    name = "afec"
    config_class = AfecConfig
    config: AfecConfig

    def __init__(self, backbone: Backbone, config: AfecConfig) -> None:
        super().__init__(backbone, config)
        self.expanded: Backbone | None = None
        self.expanded_fisher: dict[str, Tensor] = {}
        self.expanded_anchor: dict[str, Tensor] = {}

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        if trained and self.importance:
            self.expanded = self.backbone.clone()
            self.expanded.unfreeze()

    def begin_epoch(self, epoch: int, pairs: Sequence[Pair]) -> None:
        """Measure F_e for the weights θ_e after the epochs so far."""
        if self.expanded is not None and epoch:
            self.expanded_fisher = self.fisher(self.expanded, pairs)
            weights = self.expanded.named_parameters()
            self.expanded_anchor = {name: weight.detach().clone() for name, weight in weights}

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the loss of θ by equation 10 plus L(θ_e)."""
        loss = super().loss(frames, texts, references)
        if self.expanded is None:
            return loss
        expansion = self.contrastive_loss(*self.embed(frames, texts, self.expanded))
        return loss + self.convergence_loss() + expansion

    def convergence_loss(self) -> Tensor:
        """Compute λ_e/2 Σ_k F_e,k (θ_k − θ_e,k)²."""
        total = torch.zeros((), device=self.model.device)
        for name, parameter in self.model.named_parameters():
            if name in self.expanded_fisher:
                distance = (parameter - self.expanded_anchor[name]).square()
                total = total + (self.expanded_fisher[name] * distance).sum()
        return self.config.expansion_penalty / 2 * total

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.expanded = None
        self.expanded_fisher, self.expanded_anchor = {}, {}

    # -- training ---------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        expanded = self.tower_groups(self.expanded) if self.expanded is not None else []
        return super().parameter_groups() + expanded

    def stored_statistics(self) -> dict[str, dict[str, Tensor]]:
        """Collect EWC's statistics and, within a task, θ_e; its Fisher follows from it."""
        weights = dict(self.expanded.named_parameters()) if self.expanded is not None else {}
        expanded = {name: weight.detach() for name, weight in weights.items()}
        return {**super().stored_statistics(), _EXPANDED: expanded}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict(tensors)
        if self.expanded is not None:
            for name, weight in self.expanded.named_parameters():
                weight.copy_(tensors[f"{_EXPANDED}.{name}"])
