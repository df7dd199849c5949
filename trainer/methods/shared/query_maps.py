"""Query maps: stored videos stay, the text tower moves on, and a small map takes its queries back to each shard.

Both towers are fine-tuned. What a task has moved is seen on its own captions, encoded before and after it: from that
a step x ↦ xR + r is fitted, which takes a query of the new tower into the space of the one before. An earlier task's
map is the step followed by the map that it had, so neither old data nor an old encoder is needed:

    x ↦ xM_t + s_t,   M_t ← R M_t,   s_t ← r M_t + s_t   for every earlier task t;   M = I, s = 0 for the new one.

How a step is fitted is up to the method. Composed errors add up with the number of tasks in between.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.encoders.families.tower_family import MAPPED_FAMILY
from models.encoders.tower_forward import encode_texts
from models.releases.release_state import ReleaseState
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair

__all__ = ["QueryMaps", "Step"]

_MAPS, _SHIFTS = "maps", "shifts"


class Step(NamedTuple):
    """x ↦ xR + r, from the space after a task into the one before it."""

    matrix: Tensor  # [dim, dim]
    shift: Tensor  # [dim]


class QueryMaps(Finetune):
    """Fine-tuning of both towers, with a map for the queries of every earlier task.

    Attributes:
        maps: M of every task, ``[T, dim, dim]``.
        shifts: s of every task, ``[T, dim]``.
        before: the model as the task found it, frozen; None where there is nothing to come back to.
    """

    family = MAPPED_FAMILY

    def __init__(self, backbone: Backbone, config: FinetuneConfig) -> None:
        super().__init__(backbone, config)
        self.maps = torch.empty(0, backbone.dim, backbone.dim)
        self.shifts = torch.empty(0, backbone.dim)
        self.before: Backbone | None = None

    # -- what a method says -----------------------------------------------------------------------------

    @abstractmethod
    def fit_step(self, new: Tensor, old: Tensor) -> Step:
        """The step that takes ``new`` to ``old``.

        Args:
            new, old: ``float64 [N, dim]``, vectors of the same examples after and before the task.
        """

    def examples_of(self, model: Backbone, pairs: Sequence[Pair]) -> Tensor:
        """Vectors ``[N, dim]`` of what a step is fitted on: the captions."""
        captions, size = [pair.caption for pair in pairs], self.config.batch_size
        chunks = [captions[start : start + size] for start in range(0, len(captions), size)]
        return torch.cat([encode_texts(model, model.tokenize(chunk))[0] for chunk in chunks])

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        self.before = self.model.clone().requires_grad_(False) if trained and len(self.maps) else None

    @torch.no_grad()
    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Earlier maps begin with this task's step; the task itself needs none."""
        super().end_task(pairs)
        if self.before is not None and pairs:
            new, old = (self.examples_of(model, pairs).cpu().double() for model in (self.model, self.before))
            matrix, shift = (part.to(self.maps.dtype) for part in self.fit_step(new, old))
            self.shifts = shift @ self.maps + self.shifts
            self.maps = matrix @ self.maps
        self.before = None
        self._stay(1)

    # -- state ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), _MAPS: self.maps, _SHIFTS: self.shifts}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        rest = dict(tensors)
        self.maps, self.shifts = rest.pop(_MAPS).cpu(), rest.pop(_SHIFTS).cpu()
        super().load_state_dict(rest)

    def load_release(self, previous: ReleaseState) -> None:
        """Go on from a release; shards of the backbone as it came are in the space that training starts from."""
        super().load_release(previous)
        if previous.kind == FROZEN_FAMILY.kind:
            self._stay(len(previous.tasks))

    # -- inside -----------------------------------------------------------------------------------------

    def _stay(self, count: int) -> None:
        """Room for tasks whose shards are in the space of the text tower as it is now."""
        dim = self.backbone.dim
        self.maps = torch.cat([self.maps, torch.eye(dim).expand(count, -1, -1)])
        self.shifts = torch.cat([self.shifts, torch.zeros(count, dim)])
