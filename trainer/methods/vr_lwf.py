"""VR-LwF: LwF with vocabulary replay (Ding et al. 2022, "Don't stop learning: towards continual learning for the CLIP
model").

The batches of a new task hold few texts, and those are all of its own domain. So both models are shown texts that
stand for all that could be asked: sentences of random tokens of the vocabulary, drawn anew in every step. How
the videos of the batch are spread over these sentences is to stay as the teacher has it. The knowledge that is to
be kept includes CLIP's own, so that the first task has a teacher as well: the pre-trained model.

What differs: images are videos. Number and length of the sentences are those of a published reimplementation
(ZSCL's comparison with VR-LwF), which draws them once per task.
"""

from __future__ import annotations

from collections.abc import Sequence

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

__all__ = ["VrLwf", "VrLwfConfig"]


class VrLwfConfig(DistillationConfig):
    """Settings of VR-LwF."""

    sentences: int = Field(default=1000, ge=2, le=100_000, description="random sentences in every step")
    words: int = Field(default=10, ge=1, le=62, description="random tokens of a sentence")


class VrLwf(Distillation):
    """Fine-tuning that spreads videos over random sentences as before."""

    name = "vr_lwf"
    config_class = VrLwfConfig
    config: VrLwfConfig

    def choose_teacher(self) -> Backbone:
        """The model as the task found it, the first task too."""
        return self.frozen_copy()

    def distil(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """From videos to the replayed vocabulary."""
        config = self.config
        ids = random_sentences(self.model, config.sentences, config.words)
        sentences = encode_texts(self.model, ids)[0]
        with torch.no_grad():
            old_sentences = encode_texts(teacher, ids)[0]
            old_videos = encode_frames(teacher, frames)[0]
        now = config.logit_scale * videos @ sentences.T
        before = config.logit_scale * old_videos @ old_sentences.T
        return distillation_loss(now, before, config.temperature)
