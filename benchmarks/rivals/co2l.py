"""Co2L, and the color changes that it augments videos with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rivals.replay_memory import ReplayConfig, ReplayMethod
from models.backbones.backbone import Backbone

_JITTERED_SHARE = 0.8  # share of views with color jitter (published code)


class Co2lConfig(ReplayConfig):
    """Settings of Co2L; the defaults are those of the paper and its published code."""

    distillation: float = Field(default=1.0, ge=0, le=100)  # λ, weight of the relations
    relation_temperature: float = Field(default=0.2, gt=0, le=10)  # κ, of the current model
    past_temperature: float = Field(default=0.01, gt=0, le=10)  # κ*, of the model before the task
    # strength of brightness, contrast and saturation jitter; hue: a quarter of it
    jitter: float = Field(default=0.4, ge=0, le=1)
    gray: float = Field(default=0.2, ge=0, le=1)  # share of grayscale views


class Co2l(ReplayMethod):
    """Co2L: contrastive continual learning (Cha et al. 2021).

    It has two mechanisms. Asymmetric supervised contrast (section 4.1): every sample in the batch is a negative, but
    only the current task's samples are anchors, because the few past ones would be overfitted. Instance-wise relation
    distillation (section 4.2): the similarities among the batch's samples are distilled from a frozen copy of the model
    from before the task; κ* < κ makes the target sharper than the prediction.

    bmu-moco transfers Co2L to retrieval in one sentence: the logits of the old and the current model are aligned on new
    and old data, under two augmentations of every mini-batch. This implementation reads it as the paper's batch of 2N,
    made of pairs: N texts, which cannot be augmented, and two views of each of their N videos. A text has two
    positives, a view has one. Similarities are taken across modalities, in both directions, for the contrast and for
    the relations. (The original compares samples of one modality, each with all others.)

    Other differences: views differ only in color (bmu-moco: grayscale and jitter; strengths as in Co2L's published
    code; see :class:`ColorJitter`), since crops and flips would contradict captions. Past pairs are a separate batch
    in every step, where the original spreads them over an epoch. Losses are means over anchors rather than sums. The
    retrieval temperature replaces τ = 0.5. See also ``replay_memory``.
    """

    name = "co2l"
    config_class = Co2lConfig
    config: Co2lConfig
    needs_previous_model = True

    def __init__(self, backbone: Backbone, config: Co2lConfig) -> None:
        super().__init__(backbone, config)
        # Draws a view of videos ``uint8 [N, M, H, W, 3]``, the same for all frames of a video.
        self.augment: Callable[[Tensor], Tensor] = ColorJitter(
            config.jitter, share=_JITTERED_SHARE, gray=config.gray
        )

    def loss(self, frames: Tensor, texts: Sequence[str], references: Tensor | None) -> Tensor:
        """Compute the asymmetric contrast + λ · relation distillation."""
        config = self.config
        union, ids = self.union_batch(frames, texts, config.replay_batch)
        views = torch.cat([self.augment(union), self.augment(union)])
        queries, videos = self.encode(views, ids)
        loss = asymmetric_loss(queries, videos, len(texts), config.logit_scale)
        if self.previous_model is None:
            return loss
        old_queries, old_videos = self.encode_as_before(views, ids)
        temperatures = config.relation_temperature, config.past_temperature
        relations = relation_loss(queries @ videos.T, old_queries @ old_videos.T, *temperatures)
        relations = relations + relation_loss(videos @ queries.T, old_videos @ old_queries.T, *temperatures)
        return loss + config.distillation * relations / 2


def asymmetric_loss(queries: Tensor, videos: Tensor, current: int, scale: float) -> Tensor:
    """Compute the asymmetric supervised contrast across modalities, averaged over both directions, with the scale 1/τ.

    Of the queries ``[N, D]``, the ``current`` first ones are those of the current task, the anchors. Of the videos
    ``[2N, D]``, all first views and then all second views, rows i and N + i belong to query i.
    """
    similarity = scale * queries @ videos.T  # [N, 2N]
    texts = torch.arange(len(queries), device=queries.device).repeat(2)  # the text of each view
    positives = (texts == texts[:current, None]).float() / 2  # [current, 2N], both views of a text
    anchors = texts < current
    to_video = F.cross_entropy(similarity[:current], positives)
    to_text = F.cross_entropy(similarity.T[anchors], texts[anchors])
    return (to_video + to_text) / 2


def relation_loss(current: Tensor, previous: Tensor, temperature: float, past_temperature: float) -> Tensor:
    """Compute the relation distillation −Σ_j p_ij* log p_ij with temperatures κ and κ*, averaged over rows i."""
    return F.cross_entropy(current / temperature, (previous / past_temperature).softmax(dim=-1))


_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
_OPERATIONS = 4


class ColorJitter:
    """Changes each clip's colors at random, in the same way for all its frames.

    Color is the only augmentation that does not contradict captions about positions and motion. Brightness, contrast,
    saturation, hue and grayscale are affine in a pixel's color; any sequence of them is one 3 × 3 matrix and one offset
    per clip, so a batch of clips needs one matrix product. Two points differ from a chain of image operations: values
    are clamped to 0..255 once at the end, and hue rotates about the gray axis of the RGB cube rather than in HSV. Both
    hue rotations agree for a third of a turn (red to green, green to blue, blue to red).

    Args:
        strength: Brightness, contrast and saturation factors are uniform in 1 ± strength; hue rotates by up to a
            quarter of the strength (in turns) in either direction. The order of the operations is random.
        share: Probability that a clip is jittered.
        gray: Probability that a clip becomes grayscale, independent of jitter.
    """

    def __init__(self, strength: float, *, share: float, gray: float) -> None:
        self.strength = strength
        self.share = share
        self.gray = gray

    def __call__(self, clips: Tensor) -> Tensor:
        """Change copies of clips ``uint8 [N, …, 3]``, drawing from torch's global generator."""
        colors = clips.flatten(1, -2).float()  # [N, P, 3]
        # bfloat16 has 8 bits of precision, too few for a color.
        with torch.autocast(clips.device.type, enabled=False):
            maps = self._color_maps(colors.mean(dim=1))
            changed = torch.baddbmm(maps[:, 3:, :3], colors, maps[:, :3, :3])
        return changed.round_().clamp_(0, 255).to(torch.uint8).view_as(clips)

    def _color_maps(self, mean: Tensor) -> Tensor:
        """Draw maps ``[N, 4, 4]`` of row vectors (red, green, blue, 1) for clips of ``mean`` color ``[N, 3]``."""
        count, identity = len(mean), torch.eye(4, device=mean.device)
        mean = torch.cat([mean, torch.ones_like(mean[:, :1])], dim=1).unsqueeze(1)
        draws = 2 * torch.rand(_OPERATIONS, count, device=mean.device) - 1
        brightness_factor, contrast_factor, saturation_factor = 1 + self.strength * draws[:3]
        turns = self.strength / 4 * draws[3]
        light, strength, turn = brightness(brightness_factor), saturation(saturation_factor), hue(turns)
        order = torch.rand(count, _OPERATIONS, device=mean.device).argsort(dim=1)
        maps = identity.expand(count, 4, 4)
        for step in range(_OPERATIONS):
            middle = luma((mean @ maps)[:, 0, :3])
            operations = (light, contrast(contrast_factor, middle), strength, turn)
            maps = maps @ torch.stack(operations)[order[:, step], torch.arange(count, device=mean.device)]
        maps = torch.where(_random_mask(self.share, mean), maps, identity)
        return torch.where(_random_mask(self.gray, mean), maps @ saturation(torch.zeros_like(turns)), maps)


def luma(colors: Tensor) -> Tensor:
    """Compute the luma of colors ``[…, 3]``."""
    return colors @ torch.tensor(_LUMA, device=colors.device)


def brightness(factor: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` of row vectors (red, green, blue, 1) that scale colors by ``factor [N]``."""
    return _affine_map(factor[:, None, None] * torch.eye(3, device=factor.device))


def contrast(factor: Tensor, middle: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` that scale the distance of colors to the grays ``middle [N]`` by ``factor [N]``."""
    maps = brightness(factor)
    maps[:, 3, :3] = ((1 - factor) * middle).unsqueeze(1)
    return maps


def saturation(factor: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` that scale saturation by ``factor [N]`` (0: grayscale) and keep the luma."""
    gray = torch.tensor(_LUMA, device=factor.device)[:, None].expand(3, 3)
    factor = factor[:, None, None]
    return _affine_map(factor * torch.eye(3, device=factor.device) + (1 - factor) * gray)


def hue(turns: Tensor) -> Tensor:
    """Build maps ``[N, 4, 4]`` that rotate colors about the gray axis by ``turns [N]`` (Rodrigues' formula).

    Positive turns rotate red towards green.
    """
    angle = 2 * math.pi * turns[:, None, None]
    cross = torch.tensor([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]], device=turns.device) / math.sqrt(3)
    cosine = angle.cos()
    return _affine_map(cosine * torch.eye(3, device=turns.device) + (1 - cosine) / 3 + angle.sin() * cross)


def _affine_map(linear: Tensor) -> Tensor:
    maps = torch.eye(4, device=linear.device).repeat(len(linear), 1, 1)
    maps[:, :3, :3] = linear
    return maps


def _random_mask(share: float, mean: Tensor) -> Tensor:
    return (torch.rand(len(mean), device=mean.device) < share)[:, None, None]
