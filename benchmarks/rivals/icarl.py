"""iCaRL: incremental classifier and representation learning (Rebuffi et al. 2017), for retrieval; a baseline of ctp.

It has three parts. Exemplars are selected by herding, and each task has an equal share of the memory (algorithms 4 and
5, with tasks for classes). Every step learns from the union of current and past pairs, and the outputs of the model
from before the task on this union are soft targets (algorithm 3). A query is answered by the nearest class mean
(algorithm 1).

Without classes, the loss is ctp's adaptation: L = L_contrast + λ L_distill, where the contrastive loss replaces the
classification loss, and L_distill the terms for old classes,

    L_distill = −½ Σ_i (p̄_i · log p_i + p̄ᵀ_i · log pᵀ_i) / B,   p_i = softmax_j(⟨q_i, v_j⟩ / τ),

over the B pairs in the union, with p̄ by the previous model and pᵀ over the queries for a video. A gallery has one
video per "class", so the nearest class mean is the nearest video, which is the search itself.

Differences from the papers: iCaRL has a sigmoid per class and no hard labels for old classes; here current and past
pairs have both losses, as in ctp. ctp's published code distills distributions over the coordinates of each vector; here
the similarities within the batch are distilled, as in ``lwf``. Stored videos are not encoded again after a task, while
iCaRL computes class means anew. See also ``shared.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from benchmarks.rivals.shared.distillation import similarity_distillation_loss
from benchmarks.rivals.shared.replay import FillRule, ReplayConfig, ReplayMethod


class IcarlConfig(ReplayConfig):
    """Settings of iCaRL."""

    fill: FillRule = "herding"
    distillation: float = Field(default=1.0, ge=0, le=1000, description="λ; 1 in both papers")


class Icarl(ReplayMethod):
    """Fine-tuning on the union of current and past pairs, with the previous model's similarities as soft targets."""

    name = "icarl"
    config_class = IcarlConfig
    config: IcarlConfig
    needs_previous_model = True

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute L_contrast + λ L_distill."""
        config = self.config
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        union = self.append_past(frames, ids, config.replay_batch)
        current = self.encode(*union)
        loss = self.contrastive_loss(*current)
        if self.previous_model is None:
            return loss
        with torch.no_grad():
            previous = self.encode(*union, self.previous_model)
        distilled = similarity_distillation_loss(current, previous, config.logit_scale, temperature=1.0)
        return loss + config.distillation * distilled
