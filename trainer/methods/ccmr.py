"""CCMR: a ranking loss in both directions, and a penalty that protects the queries' branch
(continual-cross-modal-retrieval).

Two branches embed videos and texts; a triplet loss ranks in both directions (eq. 3). Equation 4 penalizes changes of
weights that mattered to earlier tasks, with the importance of equation 5, in the text branch alone, as for a model that
retrieves videos (section 5.3).

Differences from the paper: the branches are CLIP's towers, trained completely, instead of two layers with dropout on
frozen features. The loss is a mean over triplets instead of a sum, and equation 5 takes its gradients from small
batches of triplets. Left out: MAS (``benchmarks.rivals.weight_penalties``), a shared top layer (section 5.2), models
that retrieve texts, and earlier tasks' vectors as negatives (section 5.4, without success in the paper).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from trainer.methods.shared.weight_penalty import (
    WeightPenaltyConfig,
    WeightPenaltyMethod,
    add_importance,
    mean_gradients,
)
from trainer.task_data import Pair

_MINIMUM_SQUARED_DISTANCE = 1e-6  # the square root has no gradient at zero


class CcmrConfig(WeightPenaltyConfig):
    """Settings of continual cross-modal retrieval; the defaults are those of the paper, section 6."""

    margin: float = Field(default=0.05, gt=0, le=2)  # m of equation 3
    video_to_text: float = Field(default=1.0, ge=0, le=100)  # λ1 of equation 3
    text_to_video: float = Field(default=1.5, ge=0, le=100)  # λ2 of equation 3
    penalty: float = Field(default=2e6, ge=0, le=1e12)  # λ; twice λ3, whose penalty has no factor 1/2
    fisher_batch: int = Field(default=8, ge=2, le=1024)  # pairs per squared gradient of equation 5
    # share of earlier tasks' importance that equation 5 keeps; 0: none, as printed
    fisher_decay: float = Field(default=0.0, ge=0, le=1)


class Ccmr(WeightPenaltyMethod):
    """Fine-tuning of two branches with a ranking loss in both directions and a penalty on the text branch."""

    name = "ccmr"
    config_class = CcmrConfig
    config: CcmrConfig

    def contrastive_loss(self, queries: Tensor, videos: Tensor) -> Tensor:
        """Compute equation 3 within the batch."""
        config = self.config
        matrix = distances(videos, queries)
        positive, others = matrix.diagonal(), ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
        to_text, to_video = (d[others].view(len(d), -1) for d in (matrix, matrix.T))
        loss = config.video_to_text * ranking_loss(positive, to_text, config.margin)
        return loss + config.text_to_video * ranking_loss(positive, to_video, config.margin)

    def is_penalized(self, name: str) -> bool:
        """Check whether a weight belongs to the text branch."""
        return not name.startswith("clip.visual.")

    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute equation 5: mean squared loss gradients over small batches of triplets."""
        examples = self.small_batches(pairs, self.config.fisher_batch)
        losses = (self.task_loss(frames, texts, None) for frames, texts in examples)
        fisher = mean_gradients(losses, self.penalized_parameters(), torch.square)
        return add_importance(self.importance, fisher, self.config.fisher_decay)


def ranking_loss(positive: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """Compute a direction of equation 3: the hinge loss of distances ``[B]`` to positives + margin − ``[B, N]`` to
    negatives.

    The loss is a mean over triplets instead of a sum, so that it does not depend on the batch size.
    """
    if not negatives.numel():
        return 0 * positive.sum()
    return (positive.unsqueeze(1) + margin - negatives).relu().mean()


def distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Compute Euclidean distances ``[n, m]`` between unit vectors ``[n, D]`` and ``[m, D]`` (section 3.1)."""
    return (2 - 2 * rows @ columns.T).clamp(min=_MINIMUM_SQUARED_DISTANCE).sqrt()
