"""Analytic: closed-form maps from frozen video features to the text space, searched with pinned queries.

No tower is trained. The frozen image tower turns a video into features, the frozen text tower turns its captions into a
target, and ridge regression maps the first to the second:

- The *semantic* map is fitted to the videos of all tasks so far, through sums whose size does not depend on the number
  of tasks. It equals the joint solution over these tasks, without reading an old video (ACIL, NeurIPS 2022; RanPAC,
  NeurIPS 2023). The backbone's own video vector has a share in the prediction, so a domain of two videos works too.
- The *lexical* map is fitted to the new domain alone: its targets are TF-IDF vectors of the captions, so that exact
  words find their videos.
- Routing adds the evidence of a normal distribution around each domain's mean caption to the evidence of the words;
  the covariance within domains accumulates over tasks (:mod:`models.routing.router`).

The maps are stored with the shard and never change. ``docs/analytic.md`` has the equations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from index.arrays import Vectors, batches
from models.adapters.analytic_maps import AnalyticQueryMap, AnalyticVideoMap, VectorLayout
from models.backbones.backbone import Backbone
from models.backbones.backbone_description import TextBackground
from models.encoders.frozen_families import ANALYTIC_FAMILY
from models.encoders.tower_forward import encode_texts
from models.encoders.video_encoder import apply_video_map
from models.releases.release_state import MEASURED, ReleaseState, arrays_with_prefix
from models.releases.release_tensors import tensors_with_prefix, to_arrays
from models.routing.router import CaptionScatter
from models.routing.routing_profiles import split_pieces
from trainer.methods.base import Method, MethodConfig
from trainer.methods.shared.closed_form import (
    Lexicon,
    RegressionSums,
    build_lexicon,
    choose_penalty,
    fit_ridge,
)
from trainer.task_data import Clip, Pair, load_frames, pinned
from trainer.video_embedding import embed_clips

_CACHED_FEATURES = 65_536  # videos whose features are kept between training and embedding, 5 KiB each
_TEXTS = 64  # captions per text-tower forward
_NAMES_STEP = 18  # every 18th name and every 36th definition: 986 generic texts
_PENALTIES = 1000.0, 2000.0  # semantic and lexical, of small; others are chosen around them
_REGULARIZATION = 0.3  # share of the mean variance that is added to each variance


class AnalyticConfig(MethodConfig):
    """Settings of the analytic method."""

    # β, share of the semantic cosine in a score; the rest is lexical
    semantic_weight: float = Field(default=0.6, gt=0, le=1)
    # γ, weight of the backbone's own video vector in the semantic prediction
    zero_shot_weight: float = Field(default=0.3, ge=0, le=10)
    # ridge penalty of the semantic map; unset: chosen by cross-fitting
    semantic_penalty: float | None = Field(default=None, gt=0)
    # ridge penalty of the lexical map; unset: chosen by cross-fitting
    lexical_penalty: float | None = Field(default=None, gt=0)
    # k; queries and videos of a domain with n videos are centered on n / (n + k) of its mean
    center_captions: float = Field(default=30.0, ge=0)
    # whether the semantic map is fitted to all tasks so far instead of the current one alone
    carry: bool = True
    caption_evidence: float = Field(default=0.5, ge=0, le=10)  # factor of routing evidence from mean captions
    word_evidence: float = Field(default=0.25, ge=0, le=10)  # factor of routing evidence from words


def measure_background(backbone: Backbone) -> TextBackground:
    """Measure the distribution of generic texts, names and definitions of the nouns in ImageNet-12k."""
    from timm.data.imagenet_info import ImageNetInfo

    nouns = ImageNetInfo("imagenet-12k")
    names, definitions = (
        [nouns.index_to_description(row, detailed=is_detailed) for row in range(0, nouns.num_classes(), step)]
        for is_detailed, step in ((False, _NAMES_STEP), (True, 2 * _NAMES_STEP))
    )
    with torch.inference_mode():
        parts = [
            encode_texts(backbone, backbone.tokenize(chunk))[0].double().cpu()
            for chunk in batches([*names, *definitions], _TEXTS)
        ]
    vectors = torch.cat(parts)[:, : backbone.semantic_dim]
    covariance = vectors.T.cov()
    covariance.diagonal().add_(_REGULARIZATION * covariance.diagonal().mean())
    return TextBackground(vectors.mean(0).float().numpy(), torch.linalg.inv(covariance).float().numpy())


def build_query_map(center: Tensor, captions: Tensor, lexicon: Lexicon) -> AnalyticQueryMap:
    """Build a domain's query map from its center ``[semantic]``, training captions ``[m, semantic]`` and lexicon."""
    return AnalyticQueryMap(
        center=center.float().numpy(),
        caption_mean=(captions.mean(0).float() * len(captions) / (len(captions) + 1)).numpy(),
        tokens=lexicon.tokens.numpy(),
        token_weights=lexicon.weights.float().numpy(),
        unknown_token_weight=np.array(lexicon.unknown_weight, np.float32),
        lexicon=lexicon.vectors.half().numpy(),
    )


class Analytic(Method):
    """Closed-form maps from frozen features, one set per task, searched with pinned queries."""

    name = "analytic"
    family = ANALYTIC_FAMILY
    is_closed_form = True
    config_class = AnalyticConfig
    config: AnalyticConfig
    architecture_settings: ClassVar[tuple[str, ...]] = ("semantic_weight", "zero_shot_weight")
    caption_tensors = ("query.caption_mean",)

    def __init__(self, backbone: Backbone, config: AnalyticConfig) -> None:
        super().__init__(backbone, config)
        self.profile_factor = config.word_evidence
        self._layout = VectorLayout(backbone.semantic_dim, config.semantic_weight)
        self._background = backbone.text_background
        self._sums = RegressionSums.empty(backbone.feature_dim, self._layout.semantic)
        self._scatter = CaptionScatter.empty(self._layout.semantic)
        self._measured_scatter = self._scatter  # without the captions of folds
        self._penalty = config.semantic_penalty or _PENALTIES[0]  # of the newest semantic map
        self._before = self._sums, self._scatter, self._measured_scatter  # before the last task
        self._clear_observations()
        self._set_neutral_maps()

    @classmethod
    def find_obstacle(cls, backbone: Backbone, config: MethodConfig, previous: ReleaseState) -> str | None:
        dim = VectorLayout(backbone.semantic_dim, semantic_weight=1).dim
        obstacle = super().find_obstacle(backbone, config, previous)
        if obstacle is None and previous.kind != cls.family.kind and dim != backbone.dim:
            return f"its vectors have {backbone.dim} coordinates instead of {dim}"
        return obstacle

    # -- hooks ------------------------------------------------------------------------------------------

    def begin_task(self, task_id: str, name: str, *, trained: bool = True) -> None:
        """Forget the previous task's observations; give a task without captions neutral maps.

        Neutral maps predict with the semantic map of all tasks so far, and have no lexicon and no evidence.
        """
        self._clear_observations()
        if not trained:
            self._set_neutral_maps()

    @torch.inference_mode()
    def observe(self, frames: Tensor, captions: Sequence[Sequence[str]], clips: Sequence[Clip] = ()) -> None:
        features = self._video_features(frames, clips)
        texts = [text for group in captions for text in group]
        ids = [self.backbone.tokenize(chunk) for chunk in batches(texts, _TEXTS)]
        vectors = torch.cat([encode_texts(self.backbone, chunk)[0] for chunk in ids]).cpu()
        pieces = split_pieces(texts)
        start = 0
        for row, group in enumerate(captions):
            stop = start + len(group)
            self._observed_features.append(features[row].cpu())
            described = vectors[start:stop, : self._layout.semantic]
            self._observed_captions.append(described)
            self._observed_targets.append(F.normalize(described.mean(0), dim=-1))
            self._observed_tokens.append(np.concatenate(pieces[start:stop]).tolist())
            start = stop

    def end_task(self, pairs: Sequence[Pair] = ()) -> None:
        """Solve both maps from the observations, which are kept for :meth:`refit`."""
        self._before = self._sums, self._scatter, self._measured_scatter
        if self._observed_features:
            self._solve()

    def refit(self, rows: Sequence[int], captions: Sequence[str]) -> Analytic:
        part = Analytic(self.backbone, self.config)
        part._layout, part._background = self._layout, self._background
        part._features = self._features
        part._sums, part._scatter, part._measured_scatter = self._before
        part._lexicon, part._chosen = self._lexicon, self._chosen
        part._observed_features = [self._observed_features[row] for row in rows]
        part._observed_captions = [self._observed_captions[row] for row in rows]
        part._observed_targets = [self._observed_targets[row] for row in rows]
        part._observed_tokens = [self._observed_tokens[row] for row in rows]
        part.end_task()
        last = self.learned_tasks[-1]
        part.learned_tasks = self.learned_tasks[:-1]
        part.profiles = self.profiles.part(0, len(part.learned_tasks))
        part.record_task(last.task_id, last.name, captions)
        return part

    # -- training ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        query = {f"query.{name}": array for name, array in self._query_map.tensors().items()}
        sums = {f"sums.{name}": tensor for name, tensor in self._sums.tensors().items()}
        scatter = {f"evidence.{name}": array for name, array in self._scatter.tensors().items()}
        for name, array in self._measured_scatter.tensors().items():
            scatter[f"{MEASURED}evidence.{name}"] = array
        if self._background is not None and self.backbone.text_background is None:
            scatter |= {f"background.{name}": array for name, array in self._background._asdict().items()}
        chosen = {"penalty": torch.tensor(self._penalty)}
        return {**self.video_tensors(), **sums, **chosen, **tensors_with_prefix("", query | scatter)}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        arrays = to_arrays(tensors)
        self._query_map = AnalyticQueryMap.from_tensors(arrays_with_prefix("query.", arrays))
        # Version 1.0.0 has no lexical part and no background on other backbones than small.
        self._layout = replace(self._layout, lexical=self._query_map.lexicon.shape[-1])
        if background := arrays_with_prefix("background.", arrays):
            self._background = TextBackground(**background)
        self._video_map = AnalyticVideoMap.from_tensors(arrays_with_prefix("video.", arrays))
        self._sums = RegressionSums.from_tensors(tensors_with_prefix("sums.", tensors))
        if "penalty" in tensors and not self.config.semantic_penalty:
            self._penalty = float(tensors["penalty"])
        self._scatter = CaptionScatter.from_tensors(arrays_with_prefix("evidence.", arrays))
        measured = arrays_with_prefix(f"{MEASURED}evidence.", arrays)  # missing in releases of version 1.0.0
        self._measured_scatter = CaptionScatter.from_tensors(measured) if measured else self._scatter

    # -- encoding ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def encode_videos(self, frames: Tensor) -> Tensor:
        return apply_video_map(self._video_map, self.backbone, self._video_features(frames), self._layout)

    @torch.inference_mode()
    def embed_videos(
        self, clips: Sequence[Clip], *, report: Callable[[int], None] = lambda done: None
    ) -> Vectors:
        """Embed clips; the frames of those that were observed or embedded before are not read again."""

        def read(chunk: Sequence[Clip]) -> tuple[Sequence[Clip], list[Clip], Tensor | None]:
            missing = [clip for clip in chunk if clip.frames_path not in self._features]
            return chunk, missing, pinned(load_frames(missing)) if missing else None

        def encode(content: tuple[Sequence[Clip], list[Clip], Tensor | None]) -> Tensor:
            chunk, missing, frames = content
            new = [] if frames is None else [*self._video_features(frames, missing)]
            # The features of very many videos are not all kept.
            features = {clip.frames_path: row for clip, row in zip(missing, new, strict=True)}
            paths = [clip.frames_path for clip in chunk]
            rows = [features[path] if path in features else self._features[path] for path in paths]
            return apply_video_map(self._video_map, self.backbone, torch.stack(rows), self._layout)

        return embed_clips(encode, clips, read=read, report=report)

    def video_tensors(self) -> dict[str, Tensor]:
        video = {f"video.{name}": array for name, array in self._video_map.tensors().items()}
        return tensors_with_prefix("", video)

    # -- internal ---------------------------------------------------------------------------------------

    def _clear_observations(self) -> None:
        self._features: dict[Path, Tensor] = {}  # of the task's videos, by the file of their frames
        self._observed_features: list[Tensor] = []
        self._observed_captions: list[Tensor] = []
        self._observed_targets: list[Tensor] = []
        self._observed_tokens: list[list[int]] = []
        # Of the task or, until it is solved, one with a comparable basis.
        self._lexicon: Lexicon | None = None
        self._chosen: tuple[float, float] | None = None  # penalties of the task's maps

    def _set_neutral_maps(self) -> None:
        layout = self._layout
        weight, offset = self._sums.solve(self._penalty)
        no_words = torch.zeros(len(weight), layout.lexical), torch.zeros(layout.lexical)
        self._query_map = AnalyticQueryMap.neutral(layout)
        # Before the first captioned task, the backbone's own vector is all there is.
        share = self.config.zero_shot_weight if float(self._sums.count) else 1.0
        self._set_video_map((weight, offset), no_words, share)

    def _solve(self) -> None:
        """Solve the semantic map over all tasks, and the lexical map over this one."""
        config, layout = self.config, self._layout
        features, targets = torch.stack(self._observed_features), torch.stack(self._observed_targets)
        frozen = self._project(features)
        if not config.carry:
            self._sums = RegressionSums.empty(self.backbone.feature_dim, layout.semantic)
        share = len(features) / (len(features) + config.center_captions)
        before, residuals = self._sums, targets - config.zero_shot_weight * frozen
        self._lexicon = lexicon = build_lexicon(self._observed_tokens, layout.lexical, share, self._lexicon)
        if self._chosen is None:  # part of a task takes the penalties of the whole
            fixed, centered = (config.semantic_penalty, config.lexical_penalty), share * targets.mean(0)
            added = config.zero_shot_weight * frozen - centered
            self._chosen = (
                fixed[0] or choose_penalty(features, residuals, before.fit, _PENALTIES[0], added),
                fixed[1] or choose_penalty(features, lexicon.targets, fit_ridge, _PENALTIES[1]),
            )
        self._penalty, lexical_penalty = self._chosen
        self._sums = before.add(features, residuals)
        # Round the sums as the release stores them, since later tasks continue from those.
        self._sums = RegressionSums.from_tensors(self._sums.tensors())
        weight, offset = self._sums.solve(self._penalty)
        predicted = features.double() @ weight + offset + config.zero_shot_weight * frozen
        words = fit_ridge(features, lexicon.targets, lexical_penalty)
        self._set_video_map((weight, offset - share * predicted.mean(0)), words, config.zero_shot_weight)
        captions = torch.cat(self._observed_captions)
        if self._background is None and not self._scatter.freedom:
            self._background = measure_background(self.backbone)
        self._scatter = self._scatter.add(captions.numpy())
        self._measured_scatter = self._measured_scatter.add(captions.numpy())
        self._query_map = build_query_map(share * targets.mean(0), captions, lexicon)

    def _set_video_map(
        self, semantic: tuple[Tensor, Tensor], lexical: tuple[Tensor, Tensor], zero_shot_weight: float
    ) -> None:
        weight, offset = (torch.cat(parts, dim=-1) for parts in zip(semantic, lexical, strict=True))
        self._video_map = AnalyticVideoMap(
            weight.float().numpy(), offset.float().numpy(), np.array(zero_shot_weight, np.float32)
        )

    def _project(self, features: Tensor) -> Tensor:
        """Project features into the backbone's own joint space, semantic part only: ``[n, semantic]``."""
        projected = self.backbone.project_features(features.to(self.backbone.device))
        return projected[:, : self._layout.semantic].cpu()

    def _video_features(self, frames: Tensor, clips: Sequence[Clip] = ()) -> Tensor:
        """Compute video features ``[n, F]``, and keep those of clips, for training, embedding and calibration."""
        features = self.backbone.video_features(frames)
        for clip, row in zip(clips, features, strict=False):
            if len(self._features) < _CACHED_FEATURES:
                self._features[clip.frames_path] = row
        return features
