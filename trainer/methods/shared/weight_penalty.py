"""Weight penalties: a weight that mattered to earlier tasks is held near where they left it.

Every method here adds one term to the loss of a task,

    λ/2 Σ_k Ω_k (θ_k − θ*_k)²,

θ* being the weights at the end of the previous task, and Ω_k how much weight k matters to all tasks so far. They
differ in Ω alone: EWC and MAS estimate it from gradients once a task is learned, SI and RWalk gather it along
the path that the weights take. On the first task there is nothing to hold.

A sum over the tasks' penalties would pull to the end of every earlier task; all methods here pull to the end
of the last one, with the importances of all (Huszár 2018, "Note on the quadratic penalties in elastic weight
consolidation"), as continual-cross-modal-retrieval has it in equation 4.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from models.backbones.backbone import Backbone
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair, draw_batches, load_frames

__all__ = ["PathPenalty", "Penalty", "PenaltyConfig", "mean_gradients"]

Named = dict[str, Tensor]  # one tensor for each weight that is held, by the name of the weight


class PenaltyConfig(FinetuneConfig):
    """Settings of every method with a weight penalty."""

    penalty: float = Field(
        default=1.0, ge=0, le=1e12, description="λ; of papers without the half, twice theirs"
    )


class Penalty(Finetune):
    """Fine-tuning of both towers, held back by the importance of each weight.

    Attributes:
        importance: Ω.
        anchor: θ*.
    """

    config_class: ClassVar[type[PenaltyConfig]] = PenaltyConfig
    config: PenaltyConfig

    def __init__(self, backbone: Backbone, config: PenaltyConfig) -> None:
        super().__init__(backbone, config)
        self.importance: Named = {}
        self.anchor: Named = {}
        self._trained = False

    # -- what a method says -----------------------------------------------------------------------------

    @abstractmethod
    def consolidate(self, pairs: Sequence[Pair]) -> Named:
        """Ω after a task of these pairs, of all :meth:`held` weights; called while they are still open."""

    def holds(self, name: str) -> bool:
        """Whether a weight is held, by its name; all are, unless a method holds on to one tower alone."""
        return True

    def task_loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """The loss without the penalty."""
        return super().loss(frames, texts, references)

    def kept(self) -> dict[str, Named]:
        """What is stored beside the towers, by a prefix of its own."""
        return {"importance": self.importance, "anchor": self.anchor}

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self._trained = trained

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        return self.task_loss(frames, texts, references) + self.penalty()

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """The importance of the task joins that of the earlier ones; from here on, its weights are θ*."""
        if self._trained:
            held = self.held()
            self.importance = self.consolidate(pairs)
            self.anchor = {name: parameter.detach().clone() for name, parameter in held.items()}
        self._trained = False
        super().end_task(pairs)

    # -- the penalty ------------------------------------------------------------------------------------

    def held(self) -> dict[str, nn.Parameter]:
        """The weights that are being trained and held, by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad and self.holds(n)}

    def penalty(self) -> Tensor:
        """λ/2 Σ_k Ω_k (θ_k − θ*_k)²."""
        total = torch.zeros((), device=self.model.device)
        for name, parameter in self.model.named_parameters():
            if name in self.importance:
                total = total + (self.importance[name] * (parameter - self.anchor[name]).square()).sum()
        return self.config.penalty / 2 * total

    def small_batches(self, pairs: Sequence[Pair], size: int) -> Iterator[tuple[Tensor, list[str]]]:
        """All pairs once, drawn like a training epoch, so that the captions of one video are kept apart."""
        rng = np.random.default_rng([self.config.seed, len(self.learned_tasks)])
        for batch in draw_batches(pairs, size, rng) if pairs else ():
            yield load_frames([pair.clip for pair in batch]), [pair.caption for pair in batch]

    # -- training ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        stored = {f"{kind}.{n}": tensor for kind, named in self.kept().items() for n, tensor in named.items()}
        return super().state_dict() | stored

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        kinds = self.kept()
        super().load_state_dict({n: t for n, t in tensors.items() if n.partition(".")[0] not in kinds})
        for kind, named in kinds.items():
            stored = {n.removeprefix(f"{kind}."): t for n, t in tensors.items() if n.startswith(f"{kind}.")}
            named.clear()
            named.update({n: t.to(self.model.device, copy=True) for n, t in stored.items()})


class PathPenalty(Penalty):
    """A penalty whose importance is gathered along the path that the weights take through a task.

    What counts is the gradient of the task's own loss. The loop sees that of the sum, and clips it; so it is
    taken where it arrives at a weight, before it is clipped, less that of the penalty, λ Ω (θ − θ*).
    """

    def __init__(self, backbone: Backbone, config: PenaltyConfig) -> None:
        super().__init__(backbone, config)
        self._watches: list[RemovableHandle] = []
        self._slopes: Named = {}  # of this step
        self._before: Named = {}  # the weights before it

    @abstractmethod
    def follow(self, name: str, slope: Tensor, step: Tensor) -> None:
        """One step of one weight.

        Args:
            name: of the weight.
            slope: gradient of the task's loss before the step, in the shape of the weight.
            step: by how much the weight moved.
        """

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self._unwatch()
        if trained:
            self._watches = [
                parameter.register_hook(partial(self._watch, held, parameter))
                for held, parameter in self.held().items()
            ]

    @torch.no_grad()
    def after_step(self) -> None:
        for name, parameter in self.held().items():
            if name in self._slopes:
                self.follow(name, self._slopes[name], parameter - self._before[name])
        self._slopes, self._before = {}, {}

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        self._unwatch()
        super().end_task(pairs)

    def _watch(self, name: str, parameter: nn.Parameter, gradient: Tensor) -> None:
        before = parameter.detach().clone()
        slope = gradient.clone()
        if name in self.importance:
            slope -= self.config.penalty * self.importance[name] * (before - self.anchor[name])
        self._slopes[name], self._before[name] = slope, before

    def _unwatch(self) -> None:
        for watch in self._watches:
            watch.remove()
        self._watches, self._slopes, self._before = [], {}, {}


def mean_gradients(
    outputs: Iterable[Tensor], weights: Mapping[str, Tensor], measure: Callable[[Tensor], Tensor]
) -> Named:
    """The mean over outputs of a measure of their gradient: its square, or its magnitude.

    Args:
        outputs: scalars, made one after the other, so that one graph is held at a time.
        weights: what the gradients are taken of, by name; zero where an output does not depend on it.
        measure: applied to every gradient, element by element.
    """
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    count = 0
    for output in outputs:
        gradients = torch.autograd.grad(output, list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                total[name] += measure(gradient)
        count += 1
    return {name: tensor / max(1, count) for name, tensor in total.items()}
