"""LUCIR: learning a unified classifier incrementally via rebalancing (Hou et al. 2019); a baseline of ctp.

Without classes, a query's vector replaces the class embedding of its video, and a video's vector that of its query.
With unit vectors q_i of queries and v_i of videos in the union of current and past pairs:

- Cosine normalization: scores are cosines with a scale, as in every method here.
- Less-forget constraint: L_G = ½ mean_i[(1 − ⟨q_i, q_i*⟩) + (1 − ⟨v_i, v_i*⟩)], with vectors q*, v* by the model from
  before the task. Its weight is λ = λ_base √(|C_o| / |C_n|) as in the published code, with tasks for classes: the root
  of the number of tasks in the memory.
- Inter-class separation: L_mr = ½ mean over past pairs i of Σ_k max(m − ⟨q_i, v_i⟩ + ⟨q_i, v^k⟩, 0), plus the same with
  q and v exchanged; v^1 … v^K are the current videos nearest to q_i.

The loss is L_contrast + λ L_G + L_mr. The memory is filled by herding.

Differences from the papers: a trained scale and fine-tuning of the classifier on a balanced set have no counterpart,
since there is no classifier. ctp's published code adapts less: cosine projections, L_G on the states of all tokens
before the projection with λ = 1, and no L_mr. Here L_G is on the vectors that are searched, as on the last features of
Hou et al.; ``ranking: 0`` removes L_mr. See also ``shared.replay``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.shared.replay import FillRule, ReplayConfig, ReplayMethod


class LucirConfig(ReplayConfig):
    """Settings of LUCIR; the defaults are those of its paper on CIFAR-100."""

    fill: FillRule = "herding"
    less_forget: float = Field(
        default=5.0, ge=0, le=1000, description="λ_base, weight of the less-forget constraint"
    )
    ranking: float = Field(default=1.0, ge=0, le=100, description="weight of the margin ranking loss")
    margin: float = Field(default=0.5, gt=0, le=2, description="m, a difference of cosines")
    hard_negatives: int = Field(
        default=2, ge=1, le=1024, description="K, current videos or queries per past pair"
    )


class Lucir(ReplayMethod):
    """Fine-tuning on the union of current and past pairs with a less-forget constraint and a margin between tasks."""

    name = "lucir"
    config_class = LucirConfig
    config: LucirConfig
    needs_previous_model = True

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Copy the model from before the task, and count the tasks in the memory."""
        super().begin_task(task_id, name, trained=trained)
        past_tasks = len(self.memory.rows()["tasks"].unique())
        self._less_forget_weight = self.config.less_forget * math.sqrt(past_tasks)

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute L_contrast + λ L_G + L_mr."""
        config = self.config
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        union = self.append_past(frames, ids, config.replay_batch)
        queries, videos = self.encode(*union)
        loss = self.contrastive_loss(queries, videos)
        if self.previous_model is None:
            return loss
        with torch.no_grad():
            old_queries, old_videos = self.encode(*union, self.previous_model)
        forgotten = (less_forget_loss(queries, old_queries) + less_forget_loss(videos, old_videos)) / 2
        separation = margin_ranking_loss(queries, videos, len(ids), config.margin, config.hard_negatives)
        return loss + self._less_forget_weight * forgotten + config.ranking * separation


def less_forget_loss(current: Tensor, previous: Tensor) -> Tensor:
    """Compute the mean of 1 − ⟨f, f*⟩ (Hou et al., less-forget constraint).

    Args:
        current: f, unit vectors ``[B, dim]`` by the trained model.
        previous: f*, unit vectors ``[B, dim]`` for the same inputs by the model from before the task.
    """
    return 1 - (current * previous).sum(dim=-1).mean()


def margin_ranking_loss(queries: Tensor, videos: Tensor, current: int, margin: float, hardest: int) -> Tensor:
    """Compute the margin ranking loss (Hou et al., inter-class separation), averaged over both retrieval directions.

    Args:
        queries: Unit vectors ``[B, dim]``; the current task's come first, then those of past pairs.
        videos: Unit vectors ``[B, dim]``; row i belongs to query i.
        current: Number of pairs from the current task; without past pairs, the loss is 0.
        margin: m.
        hardest: K; all current pairs if there are fewer.
    """
    if current == len(queries):
        return queries.new_zeros(())
    similarity = queries @ videos.T
    own = similarity.diagonal()[current:, None]
    to_video = similarity[current:, :current].topk(min(hardest, current)).values
    to_text = similarity.T[current:, :current].topk(min(hardest, current)).values
    violations = [(margin - own + others).relu().sum(dim=1).mean() for others in (to_video, to_text)]
    return (violations[0] + violations[1]) / 2
