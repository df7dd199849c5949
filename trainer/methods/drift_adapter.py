"""Drift-Adapter, its orthogonal Procrustes form (Vejendla, "Drift-Adapter: a practical approach to near zero-downtime
embedding model upgrades in vector databases", EMNLP 2025, arXiv 2509.23471).

When an embedding model is replaced, the index stays, and a light map takes the vector of a new query to where the old
model would have put it. Of the paper's three maps this is the one with a closed form:

    R = argmin ‖X_new R − X_old‖_F over orthogonal R,   X_newᵀ X_old = U Σ Vᵀ,   R = U Vᵀ

over vectors of the same examples by both models. The rotation keeps angles between queries, and so what the new model
has learned of them.

What differs from the paper. There, one model is upgraded once, and 20,000 items of the index are embedded by both.
Here every task is a small upgrade, seen only on that task's own training examples, and rotations are composed
(``trainer.methods.shared.query_maps``); by default on captions alone, since only queries pass the map, and not on videos. A
task with fewer examples than dimensions leaves R open where no example points: there it is the one nearest to the
identity (``identity_weight``). The diagonal scale that the paper can put behind every map is left out, as are its
low-rank and residual forms, which are trained by gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames
from trainer.methods.finetune import FinetuneConfig
from trainer.methods.shared.query_maps import QueryMaps, Step
from trainer.task_data import Pair, load_frames

__all__ = ["DriftAdapter", "DriftAdapterConfig", "procrustes"]


class DriftAdapterConfig(FinetuneConfig):
    """Settings of fine-tuning with Drift-Adapter."""

    videos: bool = Field(default=False, description="fit on the training videos too, not on captions alone")
    identity_weight: float = Field(
        default=1e-3,
        ge=0,
        le=1e6,
        description="how many examples that did not move each dimension counts; above 0, so that R is unique",
    )


class DriftAdapter(QueryMaps):
    """Fine-tuned towers; queries are rotated back into the space of each shard."""

    name = "drift_adapter"
    config_class = DriftAdapterConfig
    config: DriftAdapterConfig

    def fit_step(self, new: Tensor, old: Tensor) -> Step:
        return Step(procrustes(new, old, self.config.identity_weight), torch.zeros(new.shape[1]))

    def examples_of(self, model: Backbone, pairs: Sequence[Pair]) -> Tensor:
        captions = super().examples_of(model, pairs)
        if not self.config.videos:
            return captions
        clips, size = (
            list({pair.clip.vector_id: pair.clip for pair in pairs}.values()),
            self.config.batch_size,
        )
        chunks = [load_frames(clips[start : start + size]) for start in range(0, len(clips), size)]
        return torch.cat([captions, *(encode_frames(model, chunk)[0] for chunk in chunks)])


def procrustes(new: Tensor, old: Tensor, identity_weight: float = 0.0) -> Tensor:
    """The orthogonal R that minimises ‖new R − old‖² + w ‖R − I‖², ``[dim, dim]``.

    Both terms are, but for what does not depend on R, −2 tr(Rᵀ C) with C = newᵀ old + w I; with C = U Σ Vᵀ the
    minimum is at R = U Vᵀ (Schönemann, "A generalized solution of the orthogonal Procrustes problem", 1966).

    Args:
        new, old: ``[N, dim]``.
        identity_weight: w; at 0 the minimum is not unique where N < dim.
    """
    covariance = new.T @ old + identity_weight * torch.eye(new.shape[1], dtype=new.dtype, device=new.device)
    u, _, vh = torch.linalg.svd(covariance)
    return u @ vh
