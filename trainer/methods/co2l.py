"""Co2L: contrastive continual learning (Cha et al. 2021).

Two mechanisms. Asymmetric supervised contrast (section 4.1): every sample of the batch is a negative, but only
samples of the current task are anchors, since the few past ones would be over-learned. Instance-wise relation
distillation (section 4.2): how alike the samples of the batch are to each other is to stay as a frozen copy of
the model from before the task sees it; κ* < κ makes that target the sharper one.

bmu-moco gives this to retrieval in one sentence: the logits of the old and the current model are aligned on new
and old data, under two augmentations of every mini-batch. We read it as the paper's batch of 2N, made of pairs:
N texts, which cannot be augmented, and two views of each of their N videos. A text has two positives, a view
has one; similarities are those across the modalities, in both directions, for the contrast as for the
relations. (The original compares samples of one modality, each with all but itself.)

What else differs: views differ in colour alone (bmu-moco: gray-scaling and jitter; strengths from Co2L's
published code, what they do in ``trainer.methods.shared.color_jitter``), since crops and flips would contradict captions;
past pairs come as a batch of their own in every step, where the original strews them over an epoch; losses are
means over anchors, not sums; and the retrieval temperature takes the place of τ = 0.5. The rest is settled in
``trainer.methods.shared.replay``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone
from trainer.methods.shared.color_jitter import ColorJitter
from trainer.methods.shared.replay import Replay, ReplayConfig
from trainer.task_data import Pair

__all__ = ["Co2l", "Co2lConfig", "asymmetric_loss", "relation_loss"]

_JITTERED = 0.8  # share of views whose colours are jittered at all (published code)


class Co2lConfig(ReplayConfig):
    """Settings of Co2L; defaults are those of the paper and its published code."""

    distillation: float = Field(default=1.0, ge=0, le=100, description="λ, weight of the relations")
    relation_temperature: float = Field(default=0.2, gt=0, le=10, description="κ, of the current model")
    past_temperature: float = Field(default=0.01, gt=0, le=10, description="κ*, of the model before the task")
    jitter: float = Field(
        default=0.4, ge=0, le=1, description="of brightness, contrast and saturation; of hue a quarter of it"
    )
    gray: float = Field(default=0.2, ge=0, le=1, description="share of views without colour")


class Co2l(Replay):
    """Contrast with current anchors alone, and relations that stay as they were."""

    name = "co2l"
    config_class = Co2lConfig
    config: Co2lConfig

    def __init__(self, backbone: Backbone, config: Co2lConfig) -> None:
        super().__init__(backbone, config)
        self.previous: Backbone | None = None
        #: An augmentation of each video, all of its frames alike: ``uint8 [N, M, H, W, 3]`` to the same.
        self.view = ColorJitter(config.jitter, share=_JITTERED, gray=config.gray)

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """The model as it is becomes the teacher; on the first task there is nothing to keep."""
        super().begin_task(task_id, name, trained=trained)
        self.previous = self.model.clone().requires_grad_(False) if trained and self.learned_tasks else None

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Asymmetric contrast + λ · relation distillation."""
        config = self.config
        ids = self.tokenize(texts)
        self.notice(frames, ids)
        joined, joined_ids = self.with_past(frames, ids, config.replay_batch)
        views = torch.cat([self.view(joined), self.view(joined)])
        queries, videos = self.encode(views, joined_ids)
        loss = asymmetric_loss(queries, videos, len(ids), config.logit_scale)
        if self.previous is None:
            return loss
        with torch.no_grad():
            old_queries, old_videos = self.encode(views, joined_ids, self.previous)
        temperatures = config.relation_temperature, config.past_temperature
        relations = relation_loss(queries @ videos.T, old_queries @ old_videos.T, *temperatures)
        relations = relations + relation_loss(videos @ queries.T, old_videos @ old_queries.T, *temperatures)
        return loss + config.distillation * relations / 2

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        super().end_task(pairs)
        self.previous = None


def asymmetric_loss(queries: Tensor, videos: Tensor, current: int, scale: float) -> Tensor:
    """Asymmetric supervised contrast across modalities, the mean of both directions.

    Args:
        queries: ``[N, D]``.
        videos: ``[2N, D]``, first and then second views; rows i and N + i belong to query i.
        current: how many of the N are of the current task and so anchors; they come first.
        scale: 1/τ.
    """
    similarity = scale * queries @ videos.T  # [N, 2N]
    texts = torch.arange(len(queries), device=queries.device).repeat(2)  # the text of each view
    positives = (texts == texts[:current, None]).float() / 2  # [current, 2N], both views of a text
    anchors = texts < current
    to_video = F.cross_entropy(similarity[:current], positives)
    to_text = F.cross_entropy(similarity.T[anchors], texts[anchors])
    return (to_video + to_text) / 2


def relation_loss(now: Tensor, before: Tensor, temperature: float, past_temperature: float) -> Tensor:
    """Instance-wise relation distillation: −Σ_j p_ij* log p_ij, mean over rows i.

    Args:
        now, before: similarities ``[n, m]`` by the current model and by the one before the task.
        temperature: κ, of p.
        past_temperature: κ*, of p*.
    """
    return F.cross_entropy(now / temperature, (before / past_temperature).softmax(dim=-1))
