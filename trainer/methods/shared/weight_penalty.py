"""Weight penalties: keep weights that matter to earlier tasks near their values.

Each method adds one term to a task's loss,

    λ/2 Σ_k Ω_k (θ_k − θ*_k)²,

where θ* are the weights at the end of the previous task, and Ω_k is the importance of weight k to all tasks so far. The
methods differ only in Ω: EWC and MAS estimate it from gradients at the end of a task, SI and RWalk accumulate it along
the training path. The first task has no penalty.

One penalty per task would pull toward the weights at the end of every earlier task. All methods here pull toward the
previous task's weights only, with the importance to all tasks (Huszár 2018, "Note on the quadratic penalties in elastic
weight consolidation"), as in continual-cross-modal-retrieval, equation 4.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from models.backbones.backbone import Backbone
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair, draw_batches, load_frames

WeightTensors = dict[str, Tensor]  # one tensor per penalized weight, by the weight's name


class WeightPenaltyConfig(FinetuneConfig):
    """Settings that all methods with a weight penalty share."""

    # λ; double the value of a paper whose penalty has no factor 1/2
    penalty: float = Field(default=1.0, ge=0, le=1e12)


class WeightPenaltyMethod(Finetune):
    """Fine-tuning of both towers with a quadratic penalty on the distance of important weights (Ω) to an anchor, θ*."""

    config_class: ClassVar[type[WeightPenaltyConfig]] = WeightPenaltyConfig
    config: WeightPenaltyConfig

    def __init__(self, backbone: Backbone, config: WeightPenaltyConfig) -> None:
        super().__init__(backbone, config)
        self.importance: WeightTensors = {}
        self.anchor: WeightTensors = {}

    # -- hooks of a subclass ----------------------------------------------------------------------------

    @abstractmethod
    def compute_importance(self, pairs: Sequence[Pair]) -> WeightTensors:
        """Compute Ω for all :meth:`penalized_parameters` after a task; called while they still require gradients."""

    def is_penalized(self, name: str) -> bool:
        """Check whether a weight has a penalty; all have one, unless a method protects a single tower."""
        return True

    def task_loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the loss without the penalty; arguments as in :meth:`loss`."""
        return super().loss(frames, texts, references)

    def stored_statistics(self) -> dict[str, WeightTensors]:
        """Collect the state besides the towers, by tensor-name prefix."""
        return {"importance": self.importance, "anchor": self.anchor}

    # -- hooks ------------------------------------------------------------------------------------------

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        return self.task_loss(frames, texts, references) + self.penalty_loss()

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Update the importance, and make the current weights the anchor."""
        if self.is_training:
            penalized = self.penalized_parameters()
            self.importance = self.compute_importance(pairs)
            self.anchor = {name: parameter.detach().clone() for name, parameter in penalized.items()}
        super().end_task(pairs)

    # -- penalty ----------------------------------------------------------------------------------------

    def penalized_parameters(self, model: Backbone | None = None) -> dict[str, nn.Parameter]:
        """Select the trained weights that have a penalty, by name, from ``model`` or the trained model."""
        named = (model or self.model).named_parameters()
        return {name: weight for name, weight in named if weight.requires_grad and self.is_penalized(name)}

    def penalty_loss(self) -> Tensor:
        """Compute λ/2 Σ_k Ω_k (θ_k − θ*_k)²."""
        total = torch.zeros((), device=self.model.device)
        for name, parameter in self.model.named_parameters():
            if name in self.importance:
                total = total + (self.importance[name] * (parameter - self.anchor[name]).square()).sum()
        return self.config.penalty / 2 * total

    def small_batches(self, pairs: Sequence[Pair], size: int) -> Iterator[tuple[Tensor, list[str]]]:
        """Yield each pair once, in batches that keep captions of one video apart, as in training."""
        rng = np.random.default_rng([self.config.seed, len(self.learned_tasks)])
        for batch in draw_batches(pairs, size, rng) if pairs else ():
            yield load_frames([pair.clip for pair in batch]), [pair.caption for pair in batch]

    # -- training ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        stored = {
            f"{prefix}.{name}": tensor
            for prefix, tensors in self.stored_statistics().items()
            for name, tensor in tensors.items()
        }
        return super().state_dict() | stored

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        statistics = self.stored_statistics()
        super().load_state_dict({n: t for n, t in tensors.items() if n.partition(".")[0] not in statistics})
        for kind, named in statistics.items():
            stored = {n.removeprefix(f"{kind}."): t for n, t in tensors.items() if n.startswith(f"{kind}.")}
            named.clear()
            named.update({n: t.to(self.model.device, copy=True) for n, t in stored.items()})


def mean_gradients(
    outputs: Iterable[Tensor], weights: Mapping[str, Tensor], transform: Callable[[Tensor], Tensor]
) -> WeightTensors:
    """Average transformed gradients, such as squares or magnitudes, over scalar outputs, by name of the weight.

    Outputs are computed lazily, so that only one graph is in memory at a time. A weight that an output does not depend
    on has gradient zero.
    """
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    count = 0
    for output in outputs:
        gradients = torch.autograd.grad(output, list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                total[name] += transform(gradient)
        count += 1
    return {name: tensor / max(1, count) for name, tensor in total.items()}


def add_importance(
    earlier: Mapping[str, Tensor], new: Mapping[str, Tensor], decay: float = 1.0
) -> WeightTensors:
    """Compute ``decay`` · Ω + Ω' for each weight, from Ω of earlier tasks, empty after the first, and the new Ω'."""
    return {n: decay * earlier[n] + value if n in earlier else value for n, value in new.items()}
