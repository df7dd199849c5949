"""LwF: learning without forgetting (Li and Hoiem 2017), for retrieval.

The model as the task found it sees the new task's own batches, and how it would have matched their texts and
videos is kept as a soft target (LwF, equations 2 and 3): no old video is needed. Its outputs on new data,
which for a classifier are the scores of the old classes, are here the similarities within the batch, from
text to video and back.

What differs: there are no heads, and so no phase that warms up a new one. The knowledge distillation loss has
the factor T² that LwF's own has not (see :func:`~trainer.methods.shared.distillation.distillation_loss`). bmu-moco
aligns "representations" of the old and the current model in this baseline, without a formula, and ctvr-ffa-tame
names but a distillation loss with T = 2; both fit distributions as well as vectors, and we take the former, which
is LwF.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from trainer.methods.shared.distillation import Distillation, distillation_loss

__all__ = ["Lwf"]


class Lwf(Distillation):
    """Fine-tuning that matches new texts and videos as before."""

    name = "lwf"

    def distil(
        self, teacher: Backbone, frames: Tensor, texts: Sequence[str], queries: Tensor, videos: Tensor
    ) -> Tensor:
        """The mean of both directions."""
        with torch.no_grad():
            old_queries, old_videos = self.embed(frames, texts, teacher)
        now = self.config.logit_scale * queries @ videos.T
        before = self.config.logit_scale * old_queries @ old_videos.T
        to_video = distillation_loss(now, before, self.config.temperature)
        to_text = distillation_loss(now.T, before.T, self.config.temperature)
        return (to_video + to_text) / 2
