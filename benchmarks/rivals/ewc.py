"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks").

A weight's importance is its diagonal entry in the Fisher information: the mean squared gradient of the log-likelihood
at the end of the task. A retrieval model's likelihood is that of the correct partner within a batch, so the gradient is
that of the contrastive loss; continual-cross-modal-retrieval, equation 5, takes that of its triplet loss in the same
way (``trainer.methods.ccmr``). The Fisher matrices of all tasks are added up; a decay reduces the oldest (online EWC:
Schwarz et al. 2018, "Progress & compress").

Differences from the paper: a contrastive loss has no value for a single sample, so gradients are squared per small
batch rather than per sample, and a larger batch gives a smaller Fisher. Labels come from the data rather than from
samples of the model (the empirical Fisher), as in most published code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from models.backbones.backbone import Backbone
from trainer.methods.shared.weight_penalty import (
    WeightPenaltyConfig,
    WeightPenaltyMethod,
    add_importance,
    mean_gradients,
)
from trainer.task_data import Pair


class EwcConfig(WeightPenaltyConfig):
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


class Ewc(WeightPenaltyMethod):
    """Fine-tuning with the Fisher information as importance."""

    name = "ewc"
    config_class = EwcConfig
    config: EwcConfig

    def compute_importance(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute γ Ω + F."""
        return add_importance(self.importance, self.fisher(self.model, pairs), self.config.decay)

    def fisher(self, model: Backbone, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Compute F for the trained weights of ``model``: mean squared gradients of the loss on small batches."""
        examples = self.small_batches(pairs, self.config.fisher_batch)
        losses = (self.contrastive_loss(*self.embed(frames, texts, model)) for frames, texts in examples)
        return mean_gradients(losses, self.penalized_parameters(model), torch.square)
