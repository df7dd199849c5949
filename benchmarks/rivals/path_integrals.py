"""Weight penalties whose importance accumulates along the training path: SI and RWalk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from models.backbones.backbone import Backbone
from trainer.methods.shared.weight_penalty import (
    WeightPenaltyConfig,
    WeightPenaltyMethod,
    WeightTensors,
    add_importance,
)
from trainer.task_data import Clip, Pair


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
        """Add one step of one weight: the gradient of the task loss before the step, and the change of the weight."""

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


class SiConfig(WeightPenaltyConfig):
    """Settings of SI."""

    # λ; twice the c of the paper, whose penalty has no factor 1/2
    penalty: float = Field(default=0.2, ge=0, le=1e12)
    damping: float = Field(default=0.1, gt=0, le=1)  # ξ of equation 5


class Si(PathIntegralMethod):
    """SI: synaptic intelligence (Zenke et al. 2017, "Continual learning through synaptic intelligence").

    During a task, every weight's contribution to the decrease in loss is accumulated: the path integral of the
    gradient, ω = −∫ g·dθ, as a running sum over steps (equation 3). At the end of the task, it is divided by the
    squared distance that the weight moved, and added to the importance (equation 5).

    Differences from the paper: its Ω sums ω unchanged; a weight whose updates increased the loss would be pushed away
    from its value, so a negative ω counts as zero, as in published code. The paper's g·θ' is for small steps of
    gradient descent; here the steps are AdamW's, with the gradient at the start of each.
    """

    name = "si"
    config_class = SiConfig
    config: SiConfig

    def __init__(self, backbone: Backbone, config: SiConfig) -> None:
        super().__init__(backbone, config)
        self.path: dict[str, Tensor] = {}  # ω of the current task
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


class RwalkConfig(WeightPenaltyConfig):
    """Settings of RWalk; the defaults are those of the paper and its published code."""

    # λ; twice that of the paper, whose penalty has no factor 1/2
    penalty: float = Field(default=2.0, ge=0, le=1e12)
    fisher_rate: float = Field(default=0.9, gt=0, le=1)  # α of equation 6, the newest window's share
    window: int = Field(default=50, ge=1, le=10_000)  # Δt of equation 7, steps
    damping: float = Field(default=1e-3, gt=0, le=1)  # ε of equation 7


class Rwalk(PathIntegralMethod):
    """RWalk: Riemannian walk (Chaudhry et al. 2018, "Riemannian walk for incremental learning").

    RWalk combines EWC and SI. The Fisher information is a running average over training rather than a separate pass at
    the end (EWC++, equation 6). A score measures how much a weight decreases the loss per distance in KL divergence,
    that is, with the Fisher as the metric (equation 7). Scores are accumulated over windows of a few steps, negative
    ones become zero, and a task's score is averaged with that of earlier tasks. The importance is Fisher plus score,
    both normalized to 0..1 (equation 8).

    Differences from the paper: a window also ends with every epoch, so that a checkpoint contains no partial window.
    Gradients are squared per batch, since a contrastive loss has no value for a single sample, and averaged over a
    window before they enter the running average, as in the published code. That code adds half the sum of scores to the
    earlier score, where the paper replaces it; this implementation follows the paper. Normalization to 0..1 takes the
    minimum as zero, which holds up to rounding: some tokens in the vocabulary are in no caption. The sample memory that
    the paper adds is left out, because ctp lists RWalk among the methods without memory.
    """

    name = "rwalk"
    config_class = RwalkConfig
    config: RwalkConfig

    def __init__(self, backbone: Backbone, config: RwalkConfig) -> None:
        super().__init__(backbone, config)
        self.fisher: dict[str, Tensor] = {}  # F, the running average over all steps so far
        self.score: dict[str, Tensor] = {}  # s of the earlier tasks
        self.path_score: dict[str, Tensor] = {}  # s of the current task
        self._open_window()

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
        statistics = {"fisher": self.fisher, "score": self.score, "walked": self.path_score}
        return {**super().stored_statistics(), **statistics}

    def _open_window(self) -> None:
        """Reset the sums over the current window."""
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
