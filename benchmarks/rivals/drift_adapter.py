"""Drift-Adapter, its orthogonal Procrustes form (Vejendla, "Drift-Adapter: a practical approach to near zero-downtime
embedding model upgrades in vector databases", EMNLP 2025, arXiv 2509.23471).

When an embedding model is replaced, the index stays, and a small map moves the vector of a new query to the one that
the old model would give. Of the paper's three maps, this one has a closed form:

    R = argmin ‖X_new R − X_old‖_F over orthogonal R,   X_newᵀ X_old = U Σ Vᵀ,   R = U Vᵀ

over both models' vectors for the same examples. A rotation preserves the angles between queries, and so what the new
model knows about them.

Differences from the paper: there, one model is upgraded once, and both models embed 20,000 items from the index. Here
every task is a small upgrade with only its own training examples, and rotations are composed: a task's captions,
encoded by the models from after and from before it, give R, and x ↦ xM_t with M_t ← R M_t for every earlier task t,
M = I for the new one. The errors of composed maps add up with the number of tasks in between.
By default, only captions are fitted, since only queries pass the map. For a task with fewer examples than dimensions, R
is undetermined in some directions; ``identity_weight`` selects the solution nearest to the identity. The optional
diagonal scale and the low-rank and residual forms, which need gradient training, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.encoders.mapped_family import MAPPED_FAMILY, MAPS, SHIFTS
from index.arrays import batches
from models.backbones.backbone import Backbone
from models.encoders.families.frozen_family import FROZEN_FAMILY
from models.encoders.tower_forward import encode_frames, encode_texts
from models.releases.release_state import ReleaseState
from trainer.methods.finetune import Finetune, FinetuneConfig
from trainer.task_data import Pair, load_frames


class DriftAdapterConfig(FinetuneConfig):
    """Settings of fine-tuning with Drift-Adapter."""

    videos: bool = Field(default=False, description="fit the map on training videos as well as captions")
    identity_weight: float = Field(
        default=1e-3,
        ge=0,
        le=1e6,
        description="weight of the identity in the fit, in examples without drift per dimension; R is unique above 0",
    )


class DriftAdapter(Finetune):
    """Fine-tuning of both towers; queries are rotated back into the space of each shard.

    Attributes:
        maps: Each task's M, ``[T, dim, dim]``.
        shifts: Zeros ``[T, dim]``; the family's maps are affine.
        previous_model: Frozen model from before the current task; None on the first task and between tasks.
    """

    name = "drift_adapter"
    config_class = DriftAdapterConfig
    config: DriftAdapterConfig
    family = MAPPED_FAMILY

    def __init__(self, backbone: Backbone, config: DriftAdapterConfig) -> None:
        super().__init__(backbone, config)
        self.maps = torch.empty(0, backbone.dim, backbone.dim)
        self.shifts = torch.empty(0, backbone.dim)
        self.previous_model: Backbone | None = None

    def example_vectors(self, model: Backbone, pairs: Sequence[Pair]) -> Tensor:
        """Compute the vectors ``[N, dim]`` of the captions and, with ``videos``, of the videos."""
        size = self.config.batch_size
        captions = batches([pair.caption for pair in pairs], size)
        parts = [encode_texts(model, model.tokenize(chunk))[0] for chunk in captions]
        if self.config.videos:
            clips = list({pair.clip.vector_id: pair.clip for pair in pairs}.values())
            parts += [encode_frames(model, load_frames(chunk))[0] for chunk in batches(clips, size)]
        return torch.cat(parts)

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        super().begin_task(task_id, name, trained=trained)
        has_shards = len(self.maps) > 0
        self.previous_model = self.model.clone().requires_grad_(False) if trained and has_shards else None

    @torch.no_grad()
    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Prepend this task's rotation to the maps of all earlier tasks, and append the identity for this task."""
        super().end_task(pairs)
        if self.previous_model is not None and pairs:
            new, old = (
                self.example_vectors(model, pairs).cpu().double()
                for model in (self.model, self.previous_model)
            )
            rotation = procrustes(new, old, self.config.identity_weight)
            self.maps = rotation.to(self.maps.dtype) @ self.maps
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


def procrustes(new: Tensor, old: Tensor, identity_weight: float = 0.0) -> Tensor:
    """Find the orthogonal R ``[dim, dim]`` that minimizes ‖new R − old‖² + w ‖R − I‖².

    Up to terms without R, the objective is −2 tr(Rᵀ C) with C = newᵀ old + w I; with C = U Σ Vᵀ, the minimum is at
    R = U Vᵀ (Schönemann, "A generalized solution of the orthogonal Procrustes problem", 1966).

    Args:
        new: ``[N, dim]`` vectors by the new model.
        old: ``[N, dim]`` vectors for the same examples by the old model.
        identity_weight: w; with 0, the minimum is not unique for N < dim.
    """
    covariance = new.T @ old + identity_weight * torch.eye(new.shape[1], dtype=new.dtype, device=new.device)
    u, _, vh = torch.linalg.svd(covariance)
    return u @ vh
