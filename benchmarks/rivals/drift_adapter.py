"""Drift-Adapter, its orthogonal Procrustes form (Vejendla, "Drift-Adapter: a practical approach to near zero-downtime
embedding model upgrades in vector databases", EMNLP 2025, arXiv 2509.23471).

When an embedding model is replaced, the index stays, and a small map moves the vector of a new query to the one that
the old model would give. Of the paper's three maps, this one has a closed form:

    R = argmin ‖X_new R − X_old‖_F over orthogonal R,   X_newᵀ X_old = U Σ Vᵀ,   R = U Vᵀ

over both models' vectors for the same examples. A rotation preserves the angles between queries, and so what the new
model knows about them.

Differences from the paper: there, one model is upgraded once, and both models embed 20,000 items from the index. Here
every task is a small upgrade with only its own training examples, and rotations are composed (``shared.query_maps``).
By default, only captions are fitted, since only queries pass the map. For a task with fewer examples than dimensions, R
is undetermined in some directions; ``identity_weight`` selects the solution nearest to the identity. The optional
diagonal scale and the low-rank and residual forms, which need gradient training, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.shared.query_maps import AffineMap, QueryMapMethod
from index.arrays import batches
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames
from trainer.methods.finetune import FinetuneConfig
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


class DriftAdapter(QueryMapMethod):
    """Fine-tuning of both towers; queries are rotated back into the space of each shard."""

    name = "drift_adapter"
    config_class = DriftAdapterConfig
    config: DriftAdapterConfig

    def fit_map(self, new: Tensor, old: Tensor) -> AffineMap:
        return AffineMap(procrustes(new, old, self.config.identity_weight), torch.zeros(new.shape[1]))

    def example_vectors(self, model: Backbone, pairs: Sequence[Pair]) -> Tensor:
        """Compute the vectors ``[N, dim]`` of the captions and, with ``videos``, of the videos."""
        captions = super().example_vectors(model, pairs)
        if not self.config.videos:
            return captions
        clips = list({pair.clip.vector_id: pair.clip for pair in pairs}.values())
        frames = (load_frames(chunk) for chunk in batches(clips, self.config.batch_size))
        return torch.cat([captions, *(encode_frames(model, chunk)[0] for chunk in frames)])


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
