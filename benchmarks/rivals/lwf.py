"""LwF: learning without forgetting (Li and Hoiem 2017), for retrieval.

The model from before the task encodes the new task's batches; its text-to-video and video-to-text similarities within a
batch are soft targets (LwF, equations 2 and 3). They replace a classifier's scores for old classes. No old video is
needed.

Differences from the papers: there are no heads, and so no warm-up phase for a new head. The distillation loss has the
factor T², which LwF's lacks (:func:`~benchmarks.rivals.shared.distillation.distillation_loss`). For this baseline,
bmu-moco aligns "representations" of the old and the current model without a formula, and ctvr-ffa-tame mentions only a
distillation loss with T = 2. Both descriptions fit distributions and vectors; this implementation compares
distributions, as LwF does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.rivals.shared.distillation import DistillationMethod, similarity_distillation_loss
from models.backbones.backbone import Backbone


class Lwf(DistillationMethod):
    """Fine-tuning with the previous model's in-batch similarities as soft targets."""

    name = "lwf"

    def teacher_loss(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """Average the loss over both retrieval directions."""
        with torch.no_grad():
            previous = self.embed(frames, texts, teacher)
        config = self.config
        return similarity_distillation_loss(
            (queries, videos), previous, config.logit_scale, config.temperature
        )
