"""Query maps: affine maps from the newest text tower to the space of each stored shard.

Both towers are fine-tuned, stored video vectors keep their values, and queries are mapped back to the space of each
shard. A task's captions, encoded by the models from after and from before the task, give a map x ↦ xR + r from the new
space to the previous one. An earlier task's map is this map followed by its existing map, so neither old data nor an
old encoder is needed:

    x ↦ xM_t + s_t,   M_t ← R M_t,   s_t ← r M_t + s_t   for every earlier task t;   M = I, s = 0 for the new task.

A subclass defines how one map is fitted. The errors of composed maps add up with the number of tasks in between.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.rivals.encoders.mapped_family import MAPPED_FAMILY, MAPS, SHIFTS
from index.arrays import batches
from models.backbones.backbone import Backbone
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.encoders.tower_forward import encode_texts
from models.releases.release_state import ReleaseState
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair


class AffineMap(NamedTuple):
    """x ↦ xR + r, from the space after a task to the space before it."""

    matrix: Tensor  # [dim, dim]
    shift: Tensor  # [dim]


class QueryMapMethod(Finetune):
    """Fine-tuning of both towers, with a query map for every earlier task.

    Attributes:
        maps: Each task's M, ``[T, dim, dim]``.
        shifts: Each task's s, ``[T, dim]``.
        previous_model: Frozen model from before the current task; None on the first task and between tasks.
    """

    family = MAPPED_FAMILY

    def __init__(self, backbone: Backbone, config: FinetuneConfig) -> None:
        super().__init__(backbone, config)
        self.maps = torch.empty(0, backbone.dim, backbone.dim)
        self.shifts = torch.empty(0, backbone.dim)
        self.previous_model: Backbone | None = None

    # -- hooks of a subclass ----------------------------------------------------------------------------

    @abstractmethod
    def fit_map(self, new: Tensor, old: Tensor) -> AffineMap:
        """Fit a map from ``new`` to ``old`` vectors.

        Args:
            new: ``float64 [N, dim]`` vectors of examples by the model from after the task.
            old: ``float64 [N, dim]`` vectors of the same examples by the model from before the task.
        """

    def example_vectors(self, model: Backbone, pairs: Sequence[Pair]) -> Tensor:
        """Compute the vectors ``[N, dim]`` that a map is fitted on: those of the captions."""
        captions = [pair.caption for pair in pairs]
        return torch.cat(
            [
                encode_texts(model, model.tokenize(chunk))[0]
                for chunk in batches(captions, self.config.batch_size)
            ]
        )

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        has_shards = len(self.maps) > 0
        self.previous_model = self.model.clone().requires_grad_(False) if trained and has_shards else None

    @torch.no_grad()
    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Prepend this task's map to the maps of all earlier tasks, and append the identity for this task."""
        super().end_task(pairs)
        if self.previous_model is not None and pairs:
            new, old = (
                self.example_vectors(model, pairs).cpu().double()
                for model in (self.model, self.previous_model)
            )
            matrix, shift = (part.to(self.maps.dtype) for part in self.fit_map(new, old))
            self.shifts = shift @ self.maps + self.shifts
            self.maps = matrix @ self.maps
        self.previous_model = None
        self._append_identity_maps(1)

    # -- state ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        return {**super().state_dict(), MAPS: self.maps, SHIFTS: self.shifts}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        rest = dict(tensors)
        self.maps, self.shifts = rest.pop(MAPS).cpu(), rest.pop(SHIFTS).cpu()
        super().load_state_dict(rest)

    def load_release(self, previous: ReleaseState) -> None:
        """Load a release; a zero-shot release's shards are in the space of the pre-trained text tower."""
        super().load_release(previous)
        if previous.kind == FROZEN_FAMILY.kind:
            self._append_identity_maps(len(previous.tasks))

    # -- internal ---------------------------------------------------------------------------------------

    def _append_identity_maps(self, count: int) -> None:
        """Append maps for tasks whose shards are in the current text tower's space."""
        dim = self.backbone.dim
        self.maps = torch.cat([self.maps, torch.eye(dim).expand(count, -1, -1)])
        self.shifts = torch.cat([self.shifts, torch.zeros(count, dim)])
