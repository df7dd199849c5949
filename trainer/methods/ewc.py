"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks").

A weight matters to a task as much as its diagonal entry of the Fisher information says: the mean squared
gradient of the log-likelihood, at the end of the task. The likelihood of a retrieval model is that of picking the
right partner within a batch, so the gradient is that of the contrastive loss, as in
continual-cross-modal-retrieval, equation 5. Fishers add up from task to task; a decay forgets the oldest (online
EWC: Schwarz et al. 2018, "Progress & compress").

What differs: a contrastive loss has no value for a sample alone, so that gradients are squared per small batch
and not per sample, which makes the Fisher smaller the larger the batch. Labels are those of the data and not
drawn from the model (the empirical Fisher), as in most published code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from trainer.methods.shared.weight_penalty import Penalty, PenaltyConfig, mean_gradients
from trainer.task_data import Pair

__all__ = ["Ewc", "EwcConfig"]


class EwcConfig(PenaltyConfig):
    """Settings of EWC."""

    penalty: float = Field(
        default=2e6, ge=0, le=1e12, description="λ; twice the λ3 of continual-cross-modal-retrieval"
    )
    fisher_batch: int = Field(default=8, ge=2, le=1024, description="pairs per squared gradient")
    decay: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="γ, share of the earlier tasks' Fisher that is kept at the end of a task",
    )


class Ewc(Penalty):
    """Fine-tuning, held back by the Fisher information."""

    name = "ewc"
    config_class = EwcConfig
    config: EwcConfig

    def consolidate(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Ω ← γ Ω + F."""
        examples = self.small_batches(pairs, self.config.fisher_batch)
        losses = (self.task_loss(frames, texts, None) for frames, texts in examples)
        fisher = mean_gradients(losses, self.held(), torch.square)
        earlier = self.importance
        return {n: self.config.decay * earlier[n] + f if n in earlier else f for n, f in fisher.items()}
