"""Distillation: the model is to see things as a frozen teacher sees them.

The teacher is a copy of the model as a task found it, from the second learned task on. What is shown to both, and
which of their similarities are compared, is up to the method.
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

__all__ = ["Distillation", "DistillationConfig", "distillation_loss", "random_sentences"]

_TASKS = "tasks"


class DistillationConfig(FinetuneConfig):
    """Settings of every method with a teacher."""

    distillation: float = Field(default=1.0, ge=0, le=1000, description="weight of the distillation loss")
    temperature: float = Field(default=2.0, gt=0, le=100, description="T; ctvr-ffa-tame, section 4.4")


class Distillation(Finetune):
    """Fine-tuning of both towers beside a teacher.

    Attributes:
        teacher: frozen; None where there is nothing to keep.
    """

    config_class: ClassVar[type[DistillationConfig]] = DistillationConfig
    config: DistillationConfig

    def __init__(self, backbone: Backbone, config: DistillationConfig) -> None:
        super().__init__(backbone, config)
        self.teacher: Backbone | None = None
        self._tasks = 0  # trained before this one
        self._trained = False

    # -- what a method says -----------------------------------------------------------------------------

    @abstractmethod
    def distil(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """The distillation loss of a step.

        Args:
            teacher: the frozen model.
            frames, texts: as in :meth:`loss`.
            queries, videos: their vectors by the model that is being trained, ``[B, dim]``.
        """

    def choose_teacher(self) -> Backbone | None:
        """The teacher of the task that begins."""
        return self.frozen_copy() if self._tasks else None

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self._trained = trained
        self.teacher = self.choose_teacher() if trained else None

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        queries, videos = self.embed(frames, texts)
        loss = self.contrast(queries, videos)
        if self.teacher is None:
            return loss
        return loss + self.config.distillation * self.distil(self.teacher, frames, texts, queries, videos)

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.teacher = None
        self._tasks += self._trained
        self._trained = False

    # -- training ---------------------------------------------------------------------------------------

    def frozen_copy(self) -> Backbone:
        """The model as it is now."""
        return self.model.clone().requires_grad_(False)

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), _TASKS: torch.tensor(self._tasks)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state_dict({name: tensor for name, tensor in tensors.items() if name != _TASKS})
        self._tasks = int(tensors[_TASKS])


def distillation_loss(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """−T² Σ_j p̄_ij log p_ij, mean over rows i, where p̄ and p are the softened distributions of teacher and student.

    T² makes up for the gradient that a temperature takes off (Hinton et al. 2015, "Distilling the knowledge in a
    neural network", section 2).

    Args:
        logits: ``[n, m]``, of the student.
        targets: ``[n, m]``, of the teacher.
        temperature: T.
    """
    softened = (targets / temperature).softmax(dim=-1)
    return temperature**2 * F.cross_entropy(logits / temperature, softened)


def random_sentences(backbone: Backbone, count: int, words: int) -> Tensor:
    """Token ids ``[count, words + 2]`` of sentences of random tokens, from start to end of text."""
    start, end = backbone.tokenize([""])[0].tolist()
    ids = torch.randint(backbone.vocabulary - 2, (count, words))
    for special in sorted((start, end)):  # stands at an end alone
        ids += ids >= special
    return torch.cat([torch.full((count, 1), start), ids, torch.full((count, 1), end)], dim=1)
