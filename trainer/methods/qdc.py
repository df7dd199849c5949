"""Query Drift Compensation (Goswami et al., "Query drift compensation: enabling compatibility in continual learning of
retrieval embedding models", CoLLAs 2025, arXiv 2506.00037).

The documents of earlier tasks stay indexed as they are. Learning is slowed by embedding distillation: queries and
videos of the new task are to stay near to where the model before the task puts them, in cosine distance. What moves
nevertheless is taken back from the queries: the mean drift of the new task's queries,

    Δ = mean over its training captions q of  E_new(q) − E_old(q),

is subtracted from every query that goes to a shard of the model before, and the drifts of all tasks in between from one
that goes to an older shard.

What differs from the paper: its documents are texts, ours are videos, encoded by the other tower. A compensated
query is brought back to unit length, which changes no ranking within a shard and lets those of several shards be
merged. The weight of the distillation could not be looked up and is a setting; 0 is fine-tuning with compensation
alone, which the paper measures too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from trainer.methods.finetune import FinetuneConfig
from trainer.methods.shared.query_maps import QueryMaps, Step

__all__ = ["Qdc", "QdcConfig"]


class QdcConfig(FinetuneConfig):
    """Settings of QDC."""

    distillation: float = Field(
        default=1.0, ge=0, le=1000, description="weight of the embedding distillation; 0: without"
    )


class Qdc(QueryMaps):
    """Fine-tuned towers held by distillation; the mean drift is subtracted from queries for earlier shards."""

    name = "qdc"
    config_class = QdcConfig
    config: QdcConfig

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Contrast within the batch, plus the cosine distance of queries and videos to where they were."""
        queries, videos = self.embed(frames, texts)
        loss = self.contrast(queries, videos)
        if self.before is None or self.config.distillation == 0:
            return loss
        with torch.no_grad():
            old_queries, old_videos = self.embed(frames, texts, self.before)
        distances = (1 - (queries * old_queries).sum(dim=1)) + (1 - (videos * old_videos).sum(dim=1))
        return loss + self.config.distillation * distances.mean()

    def fit_step(self, new: Tensor, old: Tensor) -> Step:
        """x ↦ x − Δ."""
        return Step(torch.eye(new.shape[1]), -(new - old).mean(dim=0))
