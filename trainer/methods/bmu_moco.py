"""BMU-MoCo: bidirectional momentum update for cross-modal MoCo (bmu-moco, section 3.3 and algorithm 1).

As in Base-MoCo, momentum encoders follow the encoders. They also pull the encoders back (eqs. 12 and 13), so that every
step retains knowledge of earlier tasks. There are two pairs of momentum encoders: the local pair is reset at every
task, the global pair never. Each pair gives a query one positive and one queue (eqs. 16 and 17).

A step applies, in this order: gradient, eq. 12, eq. 13, eq. 8, eq. 14, queues. Line 13 of algorithm 1 names momentum
encoders but cites equations 12 and 13, which change the encoders; the implementation applies both equations in turn.

The first task is learned as in Base-MoCo, with one pair and no pull: the rows of the paper's tables 1 to 3 have the
same A_1^1 of 54.29 (R@1 plus FR of task 1; one row of table 2 has 54.92), so they share one model of task 1.
``pull_from_first_task`` follows algorithm 1 literally.

Variants (tables 2 and 3; with ``encoder_momentum: 1`` the rows of table 2 without BMU):

- ``both``, ``local``, ``global``: the pairs of momentum encoders.
- ``ensemble``: no pull during a task; at its end the encoders become the mean of themselves and both pairs.
- ``fixed``: the pair is constant during a task, so the encoders are pulled to their weights from before the task.

Choices where the paper is silent: the ensemble weighs its members equally, and ``fixed`` has one pair, since two
constant pairs that start equal would stay equal. The ensemble averages weights, so its release is like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from trainer.methods.shared.momentum import MomentumConfig, MomentumMethod
from trainer.task_data import Pair


class BmuMocoConfig(MomentumConfig):
    """Settings of BMU-MoCo; the defaults are those of the paper, section 4.1."""

    variant: Literal["both", "local", "global", "ensemble", "fixed"] = Field(
        default="both", description="pairs of momentum encoders (table 2), or another update (table 3)"
    )
    encoder_momentum: float = Field(
        default=0.99, ge=0, le=1, description="m̂ of equations 12 and 13; 1: no pull"
    )
    pull_from_first_task: bool = Field(
        default=False, description="true: equations 12 to 17 apply to the first task too, as in algorithm 1"
    )


class BmuMoco(MomentumMethod):
    """Fine-tuning with momentum encoders that follow the encoders and pull them back.

    Attributes:
        trained_tasks: Number of tasks trained before the current one.
    """

    name = "bmu_moco"
    config_class = BmuMocoConfig
    config: BmuMocoConfig
    architecture_settings = ("queue", "variant")

    def __init__(self, backbone: Backbone, config: BmuMocoConfig) -> None:
        super().__init__(backbone, config)
        self.trained_tasks = 0

    def momentum_names(self) -> tuple[str, ...]:
        return {"local": ("local",), "global": ("global",), "fixed": ("local",)}.get(
            self.config.variant, ("local", "global")
        )

    @property
    def is_bidirectional(self) -> bool:
        """Whether BMU-MoCo (True) or Base-MoCo (False) learns the current task."""
        return self.trained_tasks > 0 or self.config.pull_from_first_task

    def contrasted_pair_count(self) -> int:
        """Count all pairs (eqs. 16 and 17), or one on a first task without pull (eqs. 10 and 11)."""
        return len(self.momentum) if self.is_bidirectional else 1

    @torch.no_grad()
    def after_step(self) -> None:
        """Apply lines 13 to 18 of algorithm 1."""
        if not self.is_bidirectional:
            super().after_step()
            return
        if self.config.variant != "ensemble":
            for pair in self.momentum:
                self.pull_encoders(pair)
        if self.config.variant != "fixed":
            for pair in self.momentum:
                self.update_momentum(pair)
        self.enqueue_keys()

    def pull_encoders(self, pair: str) -> None:
        """Pull the encoders: θ ← m̂ θ + (1 − m̂) θ_m (local pair: eq. 12, global pair: eq. 13)."""
        for trained, momentum in self.weight_pairs(pair):
            trained.lerp_(momentum, 1 - self.config.encoder_momentum)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        if self.is_training:
            self.restore_best()
            if self.config.variant == "ensemble" and self.is_bidirectional:
                self._average_weights()
            self.trained_tasks += 1
        super().end_task(pairs)

    @torch.no_grad()
    def _average_weights(self) -> None:
        """Set θ to the mean of θ and all θ_m, computed as a running mean."""
        for members, pair in enumerate(self.momentum, start=2):
            for trained, momentum in self.weight_pairs(pair):
                trained.lerp_(momentum, 1 / members)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "trained_tasks": torch.tensor(self.trained_tasks)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict(tensors)
        self.trained_tasks = int(tensors["trained_tasks"])
