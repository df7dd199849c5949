"""Weight penalties whose importance accumulates along the training path (SI, RWalk)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from models.backbones.backbone import Backbone
from trainer.methods.shared.weight_penalty import WeightPenaltyConfig, WeightPenaltyMethod, WeightTensors
from trainer.task_data import Pair


class PathIntegralMethod(WeightPenaltyMethod):
    """A penalty whose importance accumulates along the training path.

    The importance needs the gradient of the task's own loss. The training loop sees the gradient of the total loss and
    clips it; a hook on each parameter therefore records the gradient before clipping and subtracts that of the penalty,
    λ Ω (θ − θ*).
    """

    def __init__(self, backbone: Backbone, config: WeightPenaltyConfig) -> None:
        super().__init__(backbone, config)
        self._hooks: list[RemovableHandle] = []
        self._gradients: WeightTensors = {}  # of the task loss in this step
        self._weights_before: WeightTensors = {}  # this step

    @abstractmethod
    def accumulate(self, name: str, gradient: Tensor, update: Tensor) -> None:
        """Add one step of one weight to the path statistics.

        Args:
            gradient: Gradient of the task loss before the step, in the shape of the weight.
            update: Change of the weight in the step, in the same shape.
        """

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self._remove_hooks()
        if trained:
            self._hooks = [
                parameter.register_hook(partial(self._record_gradient, weight, parameter))
                for weight, parameter in self.penalized_parameters().items()
            ]

    @torch.no_grad()
    def after_step(self) -> None:
        for name, parameter in self.penalized_parameters().items():
            if name in self._gradients:
                self.accumulate(name, self._gradients[name], parameter - self._weights_before[name])
        self._gradients, self._weights_before = {}, {}

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        self._remove_hooks()
        super().end_task(pairs)

    def _record_gradient(self, name: str, parameter: nn.Parameter, gradient: Tensor) -> None:
        before = parameter.detach().clone()
        task_gradient = gradient.clone()
        if name in self.importance:
            task_gradient -= self.config.penalty * self.importance[name] * (before - self.anchor[name])
        self._gradients[name], self._weights_before[name] = task_gradient, before

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._gradients, self._weights_before = [], {}, {}
