"""Weight penalties whose importance is measured after a task (EWC, AFEC, MAS), or along its path (SI, RWalk)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.shared.weight_penalty import (
    WeightPenaltyConfig,
    WeightPenaltyMethod,
    WeightTensors,
    add_importance,
    mean_gradients,
)
from trainer.task_data import Clip, Pair, load_frames


class EwcConfig(WeightPenaltyConfig):
    """Settings of EWC."""

    penalty: float = Field(default=2e6, ge=0, le=1e12)  # λ; twice the λ3 of continual-cross-modal-retrieval
    fisher_batch: int = Field(default=8, ge=2, le=1024)  # pairs per squared gradient
    # γ, share of the earlier tasks' Fisher that is kept at the end of a task
    decay: float = Field(default=1.0, ge=0, le=1)


class Ewc(WeightPenaltyMethod):
    """EWC: elastic weight consolidation (Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural
    networks").

    A weight's importance is its diagonal entry in the Fisher information: the mean squared gradient of the
    log-likelihood at the end of the task. A retrieval model's likelihood is that of the correct partner within a batch,
    so the gradient is that of the contrastive loss; continual-cross-modal-retrieval, equation 5, takes that of its
    triplet loss in the same way (``trainer.methods.ccmr``). The Fisher matrices of all tasks are added up; a decay
    reduces the oldest (online EWC: Schwarz et al. 2018, "Progress & compress").

    Differences from the paper: a contrastive loss has no value for a single sample, so gradients are squared per small
    batch rather than per sample, and a larger batch gives a smaller Fisher. Labels come from the data rather than from
    samples of the model (the empirical Fisher), as in most published code.
    """

    name = "ewc"
    config_class = EwcConfig
    config: EwcConfig

    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute γ Ω + F."""
        return add_importance(self.importance, self.fisher(self.model, pairs), self.config.decay)

    def fisher(self, model: Backbone, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute F for the trained weights of ``model``: mean squared gradients of the loss on small batches."""
        examples = self.small_batches(pairs, self.config.fisher_batch)
        losses = (self.contrastive_loss(*self.embed(frames, texts, model)) for frames, texts in examples)
        return mean_gradients(losses, self.penalized_parameters(model), torch.square)


class AfecConfig(EwcConfig):
    """Settings of AFEC."""

    expansion_penalty: float = Field(default=400.0, ge=0, le=1e12)  # λ_e; in ctp's code, λ / 5000


class Afec(Ewc):
    """AFEC: active forgetting with synaptic expansion-convergence (Wang et al. 2021, "AFEC: active forgetting of
    negative transfer in continual learning"), on top of EWC; the row of that name in table 1 of ctp.

    EWC keeps weights near those of earlier tasks even where that hinders the new task. AFEC trains a second set of
    weights on the new task alone (expansion), and pulls the model's weights toward both sets (convergence):

    - θ_e minimizes L(θ_e), the loss of the task, without a penalty. F_e is its Fisher information on the task.
    - θ minimizes L(θ) + λ/2 Σ_k Ω_k (θ_k − θ*_k)² + λ_e/2 Σ_k F_e,k (θ_k − θ_e,k)² (equation 10), with Ω and θ* of EWC.

    θ_e exists only during a task, and the first task has none.

    Differences from the paper: θ_e starts from the pre-trained weights in every task, since pre-training is what
    initializes a tower; the published code trains its initial θ_e further in every task, and the code of ctp starts
    from the newest θ. As in both, θ_e and θ are trained in turns rather than one after the other: each step updates
    both, and an epoch's penalty uses θ_e and F_e from the end of the previous epoch, so the first epoch has none. The
    gradients of both are clipped together. F_e and Ω are computed on small batches, and Ω is a sum over the tasks, as
    for :class:`Ewc`, where both codes average.
    """

    name = "afec"
    config_class = AfecConfig
    config: AfecConfig

    def __init__(self, backbone: Backbone, config: AfecConfig) -> None:
        super().__init__(backbone, config)
        self.expanded: Backbone | None = None  # towers with the weights θ_e, from the second task on
        self.expanded_fisher: dict[str, Tensor] = {}  # F_e at the end of the last epoch
        self.expanded_anchor: dict[str, Tensor] = {}  # θ_e at the end of the last epoch

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

    def parameter_groups(self) -> list[dict[str, Any]]:
        expanded = self.tower_groups(self.expanded) if self.expanded is not None else []
        return super().parameter_groups() + expanded

    def stored_statistics(self) -> dict[str, dict[str, Tensor]]:
        """Collect EWC's statistics and, within a task, θ_e; its Fisher follows from it."""
        weights = dict(self.expanded.named_parameters()) if self.expanded is not None else {}
        expanded = {name: weight.detach() for name, weight in weights.items()}
        return {**super().stored_statistics(), "expanded": expanded}

    @torch.no_grad()
    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict(tensors)
        if self.expanded is not None:
            for name, weight in self.expanded.named_parameters():
                weight.copy_(tensors[f"expanded.{name}"])


class MasConfig(WeightPenaltyConfig):
    """Settings of MAS."""

    # λ; twice that of Aljundi et al., whose penalty has no factor 1/2
    penalty: float = Field(default=2.0, ge=0, le=1e12)


class Mas(WeightPenaltyMethod):
    """MAS: memory aware synapses (Aljundi et al. 2018, "Memory aware synapses: learning what (not) to forget").

    A weight's importance is how sensitive the network's output is to it: the mean magnitude, over a task's samples, of
    the gradient of the output's squared norm. No label is involved, so each tower is measured on its own samples: the
    image tower on videos, the text tower on captions (continual-cross-modal-retrieval, equation 6). The importances of
    all tasks are added up.

    Differences from equation 6: taken literally, it gives zero, because embeddings have unit length in the paper and
    here, and a constant has no gradient. The output is therefore taken before normalization; for a video, it is the
    mean over its frames. Equation 6 also lacks the magnitude bars in Aljundi et al., equation 3, without which the
    gradients of different samples would cancel each other. The norm of the similarity matrix, an alternative, is not
    the output of one branch, as the paper requires.
    """

    name = "mas"
    config_class = MasConfig
    config: MasConfig

    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute Ω plus equation 6 for both branches."""
        weights = self.penalized_parameters()
        clips = dict.fromkeys(pair.clip for pair in pairs)  # each video once, even with several captions
        video_norms = (_squared_video_norm(self.model, load_frames([clip])) for clip in clips)
        text_norms = (_squared_text_norm(self.model, [pair.caption]) for pair in pairs)
        video_part, text_part = (
            mean_gradients(norms, weights, torch.abs) for norms in (video_norms, text_norms)
        )
        return add_importance(self.importance, {name: video_part[name] + text_part[name] for name in weights})


def _squared_video_norm(model: Backbone, frames: Tensor) -> Tensor:
    """Sum ‖f(x)‖², before normalization, over videos ``uint8 [n, M, H, W, 3]``."""
    visual = model.clip.visual
    classes = _layer_output(visual.ln_post, lambda: encode_frames(model, frames))  # [n, M, width]
    return (classes @ visual.proj).mean(dim=1).square().sum()


def _squared_text_norm(model: Backbone, texts: Sequence[str]) -> Tensor:
    """Sum ‖g(y)‖², before normalization, over texts."""
    # [1, n, width]
    ends = _layer_output(model.text.ln_final, lambda: encode_texts(model, model.tokenize(texts)))
    projection = model.text.text_projection
    projected = projection(ends) if isinstance(projection, nn.Linear) else ends @ projection
    return projected.square().sum()


def _layer_output(layer: nn.Module, forward: Callable[[], object]) -> Tensor:
    """Capture a layer's last output while ``forward`` runs."""
    outputs: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        forward()
    finally:
        handle.remove()
    return outputs[-1]


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
