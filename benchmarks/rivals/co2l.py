"""Co2L: contrastive continual learning (Cha et al. 2021).

It has two mechanisms. Asymmetric supervised contrast (section 4.1): every sample in the batch is a negative, but only
the current task's samples are anchors, because the few past ones would be overfitted. Instance-wise relation
distillation (section 4.2): the similarities among the batch's samples are distilled from a frozen copy of the model
from before the task; κ* < κ makes the target sharper than the prediction.

bmu-moco transfers Co2L to retrieval in one sentence: the logits of the old and the current model are aligned on new and
old data, under two augmentations of every mini-batch. This implementation reads it as the paper's batch of 2N, made of
pairs: N texts, which cannot be augmented, and two views of each of their N videos. A text has two positives, a view has
one. Similarities are taken across modalities, in both directions, for the contrast and for the relations. (The original
compares samples of one modality, each with all others.)

Other differences: views differ only in color (bmu-moco: grayscale and jitter; strengths as in Co2L's published code;
see ``shared.color_jitter``), since crops and flips would contradict captions. Past pairs are a separate batch in every
step, where the original spreads them over an epoch. Losses are means over anchors rather than sums. The retrieval
temperature replaces τ = 0.5. See also ``shared.replay``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rivals.shared.color_jitter import ColorJitter
from benchmarks.rivals.shared.replay import ReplayConfig, ReplayMethod
from models.backbones.backbone import Backbone

_JITTERED_SHARE = 0.8  # share of views with color jitter (published code)


class Co2lConfig(ReplayConfig):
    """Settings of Co2L; the defaults are those of the paper and its published code."""

    distillation: float = Field(default=1.0, ge=0, le=100, description="λ, weight of the relations")
    relation_temperature: float = Field(default=0.2, gt=0, le=10, description="κ, of the current model")
    past_temperature: float = Field(default=0.01, gt=0, le=10, description="κ*, of the model before the task")
    jitter: float = Field(
        default=0.4,
        ge=0,
        le=1,
        description="strength of brightness, contrast and saturation jitter; hue: a quarter of it",
    )
    gray: float = Field(default=0.2, ge=0, le=1, description="share of grayscale views")


class Co2l(ReplayMethod):
    """Contrast with only current anchors, and distilled relations.

    Attributes:
        augment: Draws a view of videos ``uint8 [N, M, H, W, 3]``, the same for all frames of a video.
    """

    name = "co2l"
    config_class = Co2lConfig
    config: Co2lConfig
    needs_previous_model = True

    def __init__(self, backbone: Backbone, config: Co2lConfig) -> None:
        super().__init__(backbone, config)
        self.augment: Callable[[Tensor], Tensor] = ColorJitter(
            config.jitter, share=_JITTERED_SHARE, gray=config.gray
        )

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the asymmetric contrast + λ · relation distillation."""
        config = self.config
        ids = self.tokenize(texts)
        self.record_batch(frames, ids)
        joined, joined_ids = self.append_past(frames, ids, config.replay_batch)
        views = torch.cat([self.augment(joined), self.augment(joined)])
        queries, videos = self.encode(views, joined_ids)
        loss = asymmetric_loss(queries, videos, len(ids), config.logit_scale)
        if self.previous_model is None:
            return loss
        with torch.no_grad():
            old_queries, old_videos = self.encode(views, joined_ids, self.previous_model)
        temperatures = config.relation_temperature, config.past_temperature
        relations = relation_loss(queries @ videos.T, old_queries @ old_videos.T, *temperatures)
        relations = relations + relation_loss(videos @ queries.T, old_videos @ old_queries.T, *temperatures)
        return loss + config.distillation * relations / 2


def asymmetric_loss(queries: Tensor, videos: Tensor, current: int, scale: float) -> Tensor:
    """Compute the asymmetric supervised contrast across modalities, averaged over both directions.

    Args:
        queries: ``[N, D]``; queries of the current task come first.
        videos: ``[2N, D]``, all first views, then all second views; rows i and N + i belong to query i.
        current: Number of queries of the current task, which are the anchors.
        scale: 1/τ.
    """
    similarity = scale * queries @ videos.T  # [N, 2N]
    texts = torch.arange(len(queries), device=queries.device).repeat(2)  # the text of each view
    positives = (texts == texts[:current, None]).float() / 2  # [current, 2N], both views of a text
    anchors = texts < current
    to_video = F.cross_entropy(similarity[:current], positives)
    to_text = F.cross_entropy(similarity.T[anchors], texts[anchors])
    return (to_video + to_text) / 2


def relation_loss(current: Tensor, previous: Tensor, temperature: float, past_temperature: float) -> Tensor:
    """Compute the instance-wise relation distillation −Σ_j p_ij* log p_ij, averaged over rows i.

    Args:
        current: ``[n, m]`` similarities by the trained model.
        previous: ``[n, m]`` similarities by the model from before the task.
        temperature: κ, of p.
        past_temperature: κ*, of p*.
    """
    return F.cross_entropy(current / temperature, (previous / past_temperature).softmax(dim=-1))
