"""Sequential fine-tuning: both towers, task after task, with mean pooling over frames (CLIP4Clip).

ctp calls this simplest adaptation the lower bound: nothing prevents forgetting, since the text tower changes while
stored video vectors keep their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.adapted_families import TOWER_FAMILY
from models.encoders.tower_forward import encode_frames, encode_texts
from trainer.methods.base import Method, MethodConfig, in_task_loss
from trainer.task_data import Pair


class FinetuneConfig(MethodConfig):
    """Settings of sequential fine-tuning."""

    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    # learning rate of the token embeddings, then without weight decay; unset: learning_rate
    word_learning_rate: float | None = Field(default=None, gt=0, le=1)


class Finetune(Method):
    """Sequential fine-tuning of both towers, without protection for earlier tasks."""

    name = "finetune"
    family = TOWER_FAMILY
    config_class = FinetuneConfig
    config: FinetuneConfig

    def __init__(self, backbone: Backbone, config: FinetuneConfig) -> None:
        super().__init__(backbone, config)
        self.model = backbone.clone()
        self.is_training = False  # whether a trained task is in progress
        self.trained_tasks = 0  # before the current one; stored only by methods that need it

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Unfreeze both towers."""
        self.is_training = trained
        if trained:
            self.model.unfreeze()
        else:
            self.model.requires_grad_(False)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        return self.contrastive_loss(*self.embed(frames, texts))

    def embed(
        self, frames: Tensor, texts: Sequence[str], model: Backbone | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encode captions and videos as unit vectors, both ``[B, dim]``, with ``model`` or the trained model."""
        model = model or self.model
        return encode_texts(model, model.tokenize(texts))[0], encode_frames(model, frames)[0]

    def contrastive_loss(self, queries: Tensor, videos: Tensor) -> Tensor:
        """Compute the symmetric contrastive loss within a batch of unit vectors ``[B, dim]``."""
        return in_task_loss(queries, videos, self.config.logit_scale)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        self.model.requires_grad_(False)
        self.trained_tasks += self.is_training
        self.is_training = False

    def parameter_groups(self) -> list[dict[str, Any]]:
        return self.tower_groups(self.model)

    def tower_groups(self, model: Backbone) -> list[dict[str, Any]]:
        """Divide the trained parameters of ``model`` into AdamW groups."""
        trained = [p for p in model.parameters() if p.requires_grad]
        rate, word_rate = self.config.learning_rate, self.config.word_learning_rate
        weights = {"params": trained, "lr": rate, "weight_decay": self.config.weight_decay}
        if word_rate is None:
            return [weights]
        words = model.token_embedding.weight
        weights["params"] = [p for p in trained if p is not words]
        return [weights, {"params": [words], "lr": word_rate, "weight_decay": 0.0}]

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.tensors()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        self.model.load_tensors(dict(tensors))

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return encode_frames(self.model, frames)[0]

    def video_tensors(self) -> dict[str, Tensor]:
        return {name: t for name, t in self.model.tensors().items() if name.startswith("clip.visual.")}
