"""LwF: learning without forgetting (Li and Hoiem 2017), for retrieval.

The model from before the task encodes the new task's batches; its text-to-video and video-to-text similarities within a
batch are soft targets (LwF, equations 2 and 3). They replace a classifier's scores for old classes. No old video is
needed.

Differences from the papers: there are no heads, and so no warm-up phase for a new head. The distillation loss has the
factor T², which LwF's lacks. For this baseline,
bmu-moco aligns "representations" of the old and the current model without a formula, and ctvr-ffa-tame mentions only a
distillation loss with T = 2. Both descriptions fit distributions and vectors; this implementation compares
distributions, as LwF does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair

_TASKS = "tasks"


class LwfConfig(FinetuneConfig):
    """Settings of LwF."""

    distillation: float = Field(default=1.0, ge=0, le=1000, description="weight of the distillation loss")
    temperature: float = Field(default=2.0, gt=0, le=100, description="T; ctvr-ffa-tame, section 4.4")


class Lwf(Finetune):
    """Fine-tuning of both towers with the previous model's in-batch similarities as soft targets.

    Attributes:
        teacher: Frozen copy of the model from before the task; None on the first trained task and between tasks.
    """

    name = "lwf"
    config_class = LwfConfig
    config: LwfConfig

    def __init__(self, backbone: Backbone, config: LwfConfig) -> None:
        super().__init__(backbone, config)
        self.teacher: Backbone | None = None
        self._trained_tasks = 0  # not counting the current one
        self._is_training = False

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self._is_training = trained
        if trained and self._trained_tasks:
            self.teacher = self.model.clone().requires_grad_(False)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the contrastive loss plus the distillation loss, averaged over both retrieval directions."""
        queries, videos = self.embed(frames, texts)
        loss = self.contrastive_loss(queries, videos)
        if self.teacher is None:
            return loss
        with torch.no_grad():
            old_queries, old_videos = self.embed(frames, texts, self.teacher)
        scale, temperature = self.config.logit_scale, self.config.temperature
        logits, targets = scale * queries @ videos.T, scale * old_queries @ old_videos.T
        to_video = distillation_loss(logits, targets, temperature)
        to_text = distillation_loss(logits.T, targets.T, temperature)
        return loss + self.config.distillation * (to_video + to_text) / 2

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.teacher = None
        self._trained_tasks += self._is_training
        self._is_training = False

    # -- training ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), _TASKS: torch.tensor(self._trained_tasks)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict({name: tensor for name, tensor in tensors.items() if name != _TASKS})
        self._trained_tasks = int(tensors[_TASKS])


def distillation_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Compute −T² Σ_j p̄_ij log p_ij, averaged over rows i, for softened distributions p̄ (teacher) and p (student).

    The factor T² compensates the gradient scale of the temperature (Hinton et al. 2015, "Distilling the knowledge in a
    neural network", section 2).

    Args:
        logits: The student's logits ``[n, m]``.
        targets: The teacher's logits ``[n, m]``.
        temperature: T.
    """
    softened = (targets / temperature).softmax(dim=-1)
    return temperature**2 * F.cross_entropy(logits / temperature, softened)
