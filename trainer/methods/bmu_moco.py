"""BMU-MoCo: bidirectional momentum update for cross-modal MoCo (bmu-moco, section 3.3 and algorithm 1).

As in Base-MoCo, momentum encoders follow the encoders. They also pull the encoders back (eqs. 12 and 13), so that every
step retains knowledge of earlier tasks. There are two pairs of momentum encoders: the local pair is reset at every
task, the global pair never. Each pair gives a query one positive and one queue (eqs. 16 and 17).

A step applies, in this order: gradient, eq. 12, eq. 13, eq. 8, eq. 14, queues. Line 13 of algorithm 1 names momentum
encoders but cites equations 12 and 13, which change the encoders; the implementation applies both equations in turn.

The first task is learned as in Base-MoCo, with one pair and no pull: the rows of the paper's tables 1 to 3 have the
same A_1^1 of 54.29 (R@1 plus FR of task 1; one row of table 2 has 54.92), so they share one model of task 1. The
variants of tables 2 and 3 are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from trainer.methods.shared.momentum import MomentumConfig, MomentumMethod


class BmuMocoConfig(MomentumConfig):
    """Settings of BMU-MoCo; the defaults are those of the paper, section 4.1."""

    encoder_momentum: float = Field(default=0.99, ge=0, le=1)  # m̂ of equations 12 and 13; 1: no pull


class BmuMoco(MomentumMethod):
    """Fine-tuning with momentum encoders that follow the encoders and pull them back."""

    name = "bmu_moco"
    config_class = BmuMocoConfig
    config: BmuMocoConfig
    momentum_names = ("local", "global")

    def contrasted_pair_count(self) -> int:
        """Count both pairs (eqs. 16 and 17), or one on the first task (eqs. 10 and 11)."""
        return len(self.momentum) if self.trained_tasks else 1

    @torch.no_grad()
    def after_step(self) -> None:
        """Apply lines 13 to 18 of algorithm 1."""
        if self.trained_tasks:
            for pair in self.momentum:
                self.pull_encoders(pair)
        super().after_step()

    def pull_encoders(self, pair: str) -> None:
        """Pull the encoders: θ ← m̂ θ + (1 − m̂) θ_m (local pair: eq. 12, global pair: eq. 13)."""
        trained, momentum = self.weight_pairs(pair)
        torch._foreach_lerp_(trained, momentum, 1 - self.config.encoder_momentum)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "trained_tasks": torch.tensor(self.trained_tasks)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict(tensors)
        self.trained_tasks = int(tensors["trained_tasks"])
