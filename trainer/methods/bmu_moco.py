"""BMU-MoCo: bidirectional momentum update for cross-modal MoCo (bmu-moco, section 3.3 and algorithm 1).

As in Base-MoCo, momentum encoders follow the encoders; here they also pull them back (eqs. 12 and 13), so that
every step reviews what they still hold of earlier tasks. There are two pairs: the local one starts anew with
every task, the global one only once. A query has a positive and a queue from either (eqs. 16 and 17).

The order of a step is: gradient, eq. 12, eq. 13, eq. 8, eq. 14, queues. Line 13 of algorithm 1 names momentum
encoders but cites equations 12 and 13, which change the encoders; the equations are followed, one after the other.

The first task is learned as by Base-MoCo, with one pair and no pull: all rows of the paper's tables 1 to 3 start
from the same A_1^1, so they share one model of task 1. ``pull_from_first_task`` follows algorithm 1 to the letter.

Variants (tables 2 and 3; with ``encoder_momentum: 1`` the rows of table 2 without BMU):

- ``both``, ``local``, ``global``: which pairs there are.
- ``ensemble``: no pull during a task; at its end the encoders become the mean of themselves and both pairs.
- ``fixed``: the pair does not move within a task, so that the encoders are held by what the task found.

What the paper does not say of these two, and is chosen here: the weights of the ensemble, which are equal; and
that ``fixed`` has one pair, since two that are fixed and begin alike would be one pair twice. An ensemble is made
of weights, so a release serves it like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from trainer.methods.base_moco import BaseMoco, BaseMocoConfig
from trainer.task_data import Pair

__all__ = ["BmuMoco", "BmuMocoConfig"]


class BmuMocoConfig(BaseMocoConfig):
    """Settings of BMU-MoCo; defaults are those of the paper, section 4.1."""

    variant: Literal["both", "local", "global", "ensemble", "fixed"] = Field(
        default="both", description="pairs of momentum encoders (table 2), or another update (table 3)"
    )
    encoder_momentum: float = Field(
        default=0.99, ge=0, le=1, description="m̂ of equations 12 and 13; 1: the encoders are not pulled"
    )
    pull_from_first_task: bool = Field(
        default=False, description="true: equations 12 to 17 on the first task too, as in algorithm 1"
    )


class BmuMoco(BaseMoco):
    """Momentum encoders that follow the encoders and pull at them."""

    name = "bmu_moco"
    config_class = BmuMocoConfig
    config: BmuMocoConfig
    architecture_settings = ("queue", "variant")

    def __init__(self, backbone: Backbone, config: BmuMocoConfig) -> None:
        super().__init__(backbone, config)
        self.trained_tasks = 0

    def pairs(self) -> tuple[str, ...]:
        return {"local": ("local",), "global": ("global",), "fixed": ("local",)}.get(
            self.config.variant, ("local", "global")
        )

    @property
    def bidirectional(self) -> bool:
        """Whether this task is learned as BMU-MoCo; else as Base-MoCo."""
        return self.trained_tasks > 0 or self.config.pull_from_first_task

    def contrasted(self) -> int:
        """All pairs (eqs. 16 and 17); on a first task without pulls, one (eqs. 10 and 11)."""
        return len(self.momentum) if self.bidirectional else 1

    @torch.no_grad()
    def after_step(self) -> None:
        """Algorithm 1, lines 13 to 18."""
        if not self.bidirectional:
            super().after_step()
            return
        if self.config.variant != "ensemble":
            for pair in self.momentum:
                self.pull(pair)
        if self.config.variant != "fixed":
            for pair in self.momentum:
                self.follow(pair)
        self.enqueue()

    def pull(self, pair: str) -> None:
        """θ ← m̂ θ + (1 − m̂) θ_m (eq. 12 of the local pair, eq. 13 of the global one)."""
        for trained, kept in self.weights(pair):
            trained.lerp_(kept, 1 - self.config.encoder_momentum)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        if self.training:
            self.restore_best()
            if self.config.variant == "ensemble" and self.bidirectional:
                self._average()
            self.trained_tasks += 1
        super().end_task(pairs)

    @torch.no_grad()
    def _average(self) -> None:
        """θ ← the mean of θ and all θ_m, as a running mean."""
        for members, pair in enumerate(self.momentum, start=2):
            for trained, kept in self.weights(pair):
                trained.lerp_(kept, 1 / members)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), "trained_tasks": torch.tensor(self.trained_tasks)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict(tensors)
        self.trained_tasks = int(tensors["trained_tasks"])
