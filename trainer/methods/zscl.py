"""ZSCL: zero-shot continual learning (Zheng et al. 2023, "Preventing zero-shot transfer degradation in continual
learning of vision-language models").

In the space of features, the initial CLIP teaches in every task, on reference data: how reference images are
spread over reference texts is to stay as it has it, and the reverse. Each tower is compared against the other
tower of the teacher, which stands still. In the space of weights, an ensemble is made along the way: every few
steps the weights join a running mean that begins with those before the task, and the mean is what the task
leaves behind.

What differs: there is no reference data set (the paper takes images of ImageNet and texts of Conceptual
Captions). The videos of the task's own batches are the reference images, and sentences of random tokens, drawn
anew in every step, the reference texts, which the published code offers too. So the images are of the new domain
alone, and the texts are no language. That code compares images with texts in both directions, but with gradients
for the image tower alone; we read the second as meant for the text tower. The last weights always join the mean,
so that a task shorter than the interval is learned at all. Label smoothing, which is for classifiers, is left out,
and so is the quadratic pull to the weights before the task that the published settings add to the ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.shared.distillation import (
    Distillation,
    DistillationConfig,
    distillation_loss,
    random_sentences,
)
from trainer.task_data import Pair

__all__ = ["Zscl", "ZsclConfig"]

_ENSEMBLE, _STEPS = "ensemble.", "steps"


class ZsclConfig(DistillationConfig):
    """Settings of ZSCL."""

    sentences: int = Field(default=1000, ge=2, le=100_000, description="random sentences in every step")
    words: int = Field(default=10, ge=1, le=62, description="random tokens of a sentence")
    ensemble_interval: int = Field(
        default=100, ge=1, le=100_000, description="I, after how many steps the weights join the ensemble"
    )


class Zscl(Distillation):
    """Fine-tuning beside the initial model, and a mean of the weights along the way.

    Attributes:
        ensemble: that mean, by name; empty outside of training.
    """

    name = "zscl"
    config_class = ZsclConfig
    config: ZsclConfig

    def __init__(self, backbone: Backbone, config: ZsclConfig) -> None:
        super().__init__(backbone, config)
        self.ensemble: dict[str, Tensor] = {}
        self._steps = 0  # of the task that is being learned

    # -- hooks ------------------------------------------------------------------------------------------

    def choose_teacher(self) -> Backbone:
        """The initial model, in every task."""
        return self.backbone

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """The ensemble begins with the weights before the task."""
        super().begin_task(task_id, name, trained=trained)
        self._steps = 0
        self.ensemble = {
            name: parameter.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }

    def distil(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """From videos to sentences for the image tower, from sentences to videos for the text tower."""
        config = self.config
        ids = random_sentences(self.model, config.sentences, config.words)
        sentences = encode_texts(self.model, ids)[0]
        with torch.no_grad():
            old_sentences = encode_texts(teacher, ids)[0]
            old_videos = encode_frames(teacher, frames)[0]
        scale, temperature = config.logit_scale, config.temperature
        before = scale * old_videos @ old_sentences.T
        of_images = distillation_loss(scale * videos @ old_sentences.T, before, temperature)
        of_texts = distillation_loss(scale * sentences @ old_videos.T, before.T, temperature)
        return of_images + of_texts

    def after_step(self) -> None:
        self._steps += 1
        if self._steps % self.config.ensemble_interval == 0:
            self._join(self._steps // self.config.ensemble_interval)

    @torch.no_grad()
    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """The ensemble takes the place of the weights."""
        interval = self.config.ensemble_interval
        if self._steps % interval:
            self._join(self._steps // interval + 1)
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

    # -- inside -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def _join(self, members: int) -> None:
        """θ̂ ← θ / (t + 1) + t θ̂ / (t + 1), t members having joined with this one."""
        weights = dict(self.model.named_parameters())
        for name, mean in self.ensemble.items():
            mean.lerp_(weights[name], 1 / (members + 1))
