"""VR-LwF: LwF with vocabulary replay (Ding et al. 2022, "Don't stop learning: towards continual learning for the CLIP
model").

A new task's batches contain few texts, all from its own domain. Both models therefore also encode sentences of random
tokens, drawn in every step, as a sample of all possible queries. The distribution of the batch's videos over these
sentences is distilled from the teacher. The knowledge to preserve includes CLIP's, so the first task has a teacher,
too: the pre-trained model.

Differences from the paper: videos replace images. Number and length of the sentences follow a published
reimplementation (ZSCL's comparison with VR-LwF), which draws the sentences once per task.
"""

from __future__ import annotations

from collections.abc import Sequence

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


class VrLwfConfig(DistillationConfig):
    """Settings of VR-LwF."""

    sentences: int = Field(default=1000, ge=2, le=100_000, description="random sentences per step")
    words: int = Field(default=10, ge=1, le=62, description="random tokens per sentence")


class VrLwf(DistillationMethod):
    """Fine-tuning with the distribution of videos over random sentences as soft targets."""

    name = "vr_lwf"
    config_class = VrLwfConfig
    config: VrLwfConfig

    def create_teacher(self) -> Backbone:
        """Copy the model from before the task, also for the first task."""
        return self.frozen_copy()

    def teacher_loss(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """Compute the distillation loss from videos to random sentences."""
        config = self.config
        ids = random_sentences(self.model, config.sentences, config.words)
        sentences = encode_texts(self.model, ids)[0]
        with torch.no_grad():
            old_sentences = encode_texts(teacher, ids)[0]
            old_videos = encode_frames(teacher, frames)[0]
        logits = config.logit_scale * videos @ sentences.T
        targets = config.logit_scale * old_videos @ old_sentences.T
        return distillation_loss(logits, targets, config.temperature)
