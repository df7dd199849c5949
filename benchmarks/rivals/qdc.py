"""Query Drift Compensation (Goswami et al., "Query drift compensation: enabling compatibility in continual learning of
retrieval embedding models", CoLLAs 2025, arXiv 2506.00037).

Documents from earlier tasks keep their stored vectors. Embedding distillation limits drift: it penalizes the cosine
distance between the new task's queries and videos and their vectors by the model from before the task. The remaining
drift is removed from queries: the mean drift of the new task's queries,

    Δ = mean over its training captions q of  E_new(q) − E_old(q),

is subtracted from every query for a shard of the previous model; for an older shard, the drifts of all tasks in between
are subtracted.

Differences from the paper: its documents are texts; here they are videos, encoded by the other tower. A compensated
query is normalized to unit length, which changes no ranking within a shard and makes scores from several shards
comparable. The weight of the distillation is a setting, because we do not know its published value; 0 is fine-tuning
with compensation only, which the paper also reports.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.shared.query_maps import AffineMap, QueryMapMethod
from trainer.methods.finetune import FinetuneConfig


class QdcConfig(FinetuneConfig):
    """Settings of QDC."""

    distillation: float = Field(
        default=1.0, ge=0, le=1000, description="weight of the embedding distillation; 0: without"
    )


class Qdc(QueryMapMethod):
    """Fine-tuning with embedding distillation; queries for earlier shards are corrected by the mean drift."""

    name = "qdc"
    config_class = QdcConfig
    config: QdcConfig

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Add the mean cosine distance between queries and videos and their old vectors to the contrastive loss."""
        queries, videos = self.embed(frames, texts)
        loss = self.contrastive_loss(queries, videos)
        if self.previous_model is None or self.config.distillation == 0:
            return loss
        with torch.no_grad():
            old_queries, old_videos = self.embed(frames, texts, self.previous_model)
        distances = (1 - (queries * old_queries).sum(dim=1)) + (1 - (videos * old_videos).sum(dim=1))
        return loss + self.config.distillation * distances.mean()

    def fit_map(self, new: Tensor, old: Tensor) -> AffineMap:
        """Build x ↦ x − Δ."""
        return AffineMap(torch.eye(new.shape[1]), -(new - old).mean(dim=0))
