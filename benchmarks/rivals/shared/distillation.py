"""Distillation: a frozen teacher's similarities are soft targets for the trained model.

From the second trained task on, the teacher is a copy of the model from before the task. A method chooses both models'
inputs and the similarities to compare.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair

_TASKS = "tasks"


class DistillationConfig(FinetuneConfig):
    """Settings of every method with a teacher."""

    distillation: float = Field(default=1.0, ge=0, le=1000, description="weight of the distillation loss")
    temperature: float = Field(default=2.0, gt=0, le=100, description="T; ctvr-ffa-tame, section 4.4")


class DistillationMethod(Finetune):
    """Fine-tuning of both towers with a distillation loss.

    Attributes:
        teacher: The current task's frozen teacher; None without distillation.
    """

    config_class: ClassVar[type[DistillationConfig]] = DistillationConfig
    config: DistillationConfig

    def __init__(self, backbone: Backbone, config: DistillationConfig) -> None:
        super().__init__(backbone, config)
        self.teacher: Backbone | None = None
        self._trained_tasks = 0  # not counting the current one
        self._is_training = False

    # -- hooks of a subclass ----------------------------------------------------------------------------

    @abstractmethod
    def teacher_loss(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """Compute a step's distillation loss.

        Args:
            teacher: Frozen teacher.
            frames: Frames of the batch, as in :meth:`loss`.
            texts: Captions of the batch, as in :meth:`loss`.
            queries: ``[B, dim]`` vectors of the captions by the trained model.
            videos: ``[B, dim]`` vectors of the videos by the trained model.
        """

    def create_teacher(self) -> Backbone | None:
        """Create the teacher for a task that starts; None for no distillation."""
        return self.frozen_copy() if self._trained_tasks else None

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self._is_training = trained
        self.teacher = self.create_teacher() if trained else None

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        queries, videos = self.embed(frames, texts)
        loss = self.contrastive_loss(queries, videos)
        if self.teacher is None:
            return loss
        return loss + self.config.distillation * self.teacher_loss(
            self.teacher, frames, texts, queries, videos
        )

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.teacher = None
        self._trained_tasks += self._is_training
        self._is_training = False

    # -- training ---------------------------------------------------------------------------------------

    def frozen_copy(self) -> Backbone:
        """Copy the trained model, frozen."""
        return self.model.clone().requires_grad_(False)

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


def similarity_distillation_loss(
    current: tuple[Tensor, Tensor], previous: tuple[Tensor, Tensor], scale: float, temperature: float
) -> Tensor:
    """Compute the distillation loss of the similarities within a batch, averaged over both retrieval directions.

    Args:
        current: Query and video vectors by the trained model, ``[B, dim]`` each.
        previous: Query and video vectors by the teacher, ``[B, dim]`` each.
        scale: 1/τ, which turns similarities into logits.
        temperature: T.
    """
    logits, targets = scale * current[0] @ current[1].T, scale * previous[0] @ previous[1].T
    to_video = distillation_loss(logits, targets, temperature)
    to_text = distillation_loss(logits.T, targets.T, temperature)
    return (to_video + to_text) / 2


def random_sentences(backbone: Backbone, count: int, words: int) -> Tensor:
    """Draw token IDs ``[count, words + 2]``: random tokens between start-of-text and end-of-text."""
    start, end = backbone.tokenize([""])[0].tolist()
    ids = torch.randint(backbone.vocabulary - 2, (count, words))
    for special in sorted((start, end)):  # skip both special tokens' IDs
        ids += ids >= special
    return torch.cat([torch.full((count, 1), start), ids, torch.full((count, 1), end)], dim=1)
