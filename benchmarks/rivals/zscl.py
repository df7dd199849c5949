"""ZSCL: zero-shot continual learning (Zheng et al. 2023, "Preventing zero-shot transfer degradation in continual
learning of vision-language models").

In feature space, the pre-trained CLIP is every task's teacher on reference data: the distributions of reference images
over reference texts, and of texts over images, are distilled. Each tower is compared with the teacher's other tower,
which is fixed. In weight space, every few steps the weights join a running mean, which starts with the weights from
before the task and becomes the task's result.

Differences from the paper: there is no reference data set (the paper uses images from ImageNet and texts from
Conceptual Captions). The videos in the task's batches are the reference images, and sentences of random tokens, drawn
in every step, are the reference texts, an option in the published code. The images are therefore only from the new
domain, and the texts are not natural language. The published code compares images with texts in both directions, but
only with the image tower's gradients; here the second direction trains the text tower. The last weights always join the
mean, so a task with fewer steps than the interval is learned as well. Label smoothing, which is for classifiers, and
the quadratic pull to the weights before the task, which the published settings add, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.shared.distillation import (
    DistillationConfig,
    DistillationMethod,
    distillation_loss,
    random_sentences,
)
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.task_data import Pair

_ENSEMBLE, _STEPS = "ensemble.", "steps"


class ZsclConfig(DistillationConfig):
    """Settings of ZSCL."""

    sentences: int = Field(default=1000, ge=2, le=100_000, description="random sentences per step")
    words: int = Field(default=10, ge=1, le=62, description="random tokens per sentence")
    ensemble_interval: int = Field(
        default=100, ge=1, le=100_000, description="I, steps between two updates of the weight ensemble"
    )


class Zscl(DistillationMethod):
    """Fine-tuning with the pre-trained model as teacher and a running mean of the weights.

    Attributes:
        ensemble: Running mean of the weights by name; empty between tasks.
    """

    name = "zscl"
    config_class = ZsclConfig
    config: ZsclConfig

    def __init__(self, backbone: Backbone, config: ZsclConfig) -> None:
        super().__init__(backbone, config)
        self.ensemble: dict[str, Tensor] = {}
        self._steps = 0  # in the current task

    # -- hooks ------------------------------------------------------------------------------------------

    def create_teacher(self) -> Backbone:
        """Copy the pre-trained model, for every task."""
        return self.backbone

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Start the ensemble with the weights from before the task."""
        super().begin_task(task_id, name, trained=trained)
        self._steps = 0
        self.ensemble = {
            name: parameter.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def teacher_loss(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """Add the loss from videos to sentences (image tower) and that from sentences to videos (text tower)."""
        config = self.config
        ids = random_sentences(self.model, config.sentences, config.words)
        sentences = encode_texts(self.model, ids)[0]
        with torch.no_grad():
            old_sentences = encode_texts(teacher, ids)[0]
            old_videos = encode_frames(teacher, frames)[0]
        scale, temperature = config.logit_scale, config.temperature
        targets = scale * old_videos @ old_sentences.T
        image_loss = distillation_loss(scale * videos @ old_sentences.T, targets, temperature)
        text_loss = distillation_loss(scale * sentences @ old_videos.T, targets.T, temperature)
        return image_loss + text_loss

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % self.config.ensemble_interval == 0:
            self._update_ensemble(self._steps // self.config.ensemble_interval)

    @torch.no_grad()
    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Replace the weights with the ensemble."""
        interval = self.config.ensemble_interval
        if self._steps % interval:
            self._update_ensemble(self._steps // interval + 1)
        weights = dict(self.model.named_parameters())
        for name, mean in self.ensemble.items():
            weights[name].copy_(mean)
        self.ensemble = {}
        self._steps = 0
        super().end_task(pairs)

    # -- training ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        ensemble = {_ENSEMBLE + name: mean for name, mean in self.ensemble.items()}
        return {**super().state_dict(), **ensemble, _STEPS: torch.tensor(self._steps)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        ensemble = {name: mean for name, mean in tensors.items() if name.startswith(_ENSEMBLE)}
        rest = {name: t for name, t in tensors.items() if name not in ensemble and name != _STEPS}
        super().load_state_dict(rest)
        self._steps = int(tensors[_STEPS])
        self.ensemble = {
            name.removeprefix(_ENSEMBLE): mean.to(self.model.device, copy=True)
            for name, mean in ensemble.items()
        }

    # -- internal ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _update_ensemble(self, members: int) -> None:
        """Set θ̂ ← θ / (t + 1) + t θ̂ / (t + 1), where t = ``members`` includes the current weights."""
        weights = dict(self.model.named_parameters())
        for name, mean in self.ensemble.items():
            mean.lerp_(weights[name], 1 / (members + 1))
