"""LUMP: lifelong unsupervised mixup (Madaan et al. 2022, "Representational continuity for unsupervised
continual learning").

From the second task on, every sample is mixed with one from the memory, λ·x + (1 − λ)·x', with one λ ~ Beta(α, α) per
step, and the loss is that of the mixed samples. Frames are mixed as pixels. Texts cannot be mixed, so their vectors are
mixed with the same λ and normalized to unit length. A mixed video and its mixed text are a positive pair, as in
bmu-moco; the other mixed samples in the batch are negatives.

Differences from the papers: bmu-moco also pushes the mixed samples into its negative queues, and marks LUMP as using
extra encoders without naming them; plain fine-tuning has neither. The original mixes two augmentations of an image;
here video and text take their place. A memory smaller than a batch is used more than once. Other differences are in
``shared.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.distributions import Beta
from torch.nn import functional as F

from benchmarks.rivals.shared.replay import FillRule, MemoryConfig, ReplayMethod


class LumpConfig(MemoryConfig):
    """Settings of LUMP; the defaults are those of its published code."""

    fill: FillRule = "reservoir"
    mixup: float = Field(default=0.4, gt=0, le=100, description="α of the Beta distribution of λ")


class Lump(ReplayMethod):
    """Fine-tuning on mixtures of current and past pairs."""

    name = "lump"
    config_class = LumpConfig
    config: LumpConfig

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        past = self.sample_past(len(ids), frames.device)
        if past is None:
            return self.contrastive_loss(*self.encode(frames, ids))
        partners = torch.arange(len(ids)) % len(past["ids"])
        share = float(Beta(self.config.mixup, self.config.mixup).sample())
        mixed = torch.lerp(past["frames"][partners].float(), frames.float(), share)
        queries, videos = self.encode(mixed, ids)
        past_queries = self.encode_ids(past["ids"][partners])
        mixed_queries = F.normalize(torch.lerp(past_queries, queries, share), dim=-1)
        return self.contrastive_loss(mixed_queries, videos)
