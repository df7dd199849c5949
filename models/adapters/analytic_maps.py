"""Maps of the analytic method: from frozen features to the vectors of videos and queries.

A vector has three parts: the *semantic* part in the text space of the backbone, the *lexical* part in a space of the
domain's own words, and two coordinates that complete queries and videos to unit length. With the semantic weight β, the
cosine of a query q and a video v is

    β · cos(semantic q, semantic v) + (1 − β) · κ(q) · cos(lexical q, lexical v)

where κ(q) is the share of the query's words, by TF-IDF weight, that the domain knows. The lexical part occupies the
reserved coordinates of the backbone's space; a backbone without reserved coordinates has the semantic part alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backbones.backbone import Backbone

_COMPLETIONS = 2  # coordinates that complete queries and videos to unit length
MIN_LENGTH = 1e-8  # lower bound of lengths that vectors are divided by


@dataclass(frozen=True)
class VectorLayout:
    """Sizes of the parts of a vector.

    Attributes:
        semantic: Coordinates of the semantic part.
        lexical: Coordinates of the lexical part; 0 without reserved coordinates.
        dim: Coordinates of the whole vector.
        semantic_weight: β, weight of the semantic part.
    """

    semantic: int
    lexical: int
    dim: int
    semantic_weight: float

    @classmethod
    def for_backbone(cls, backbone: Backbone, semantic_weight: float) -> VectorLayout:
        """Layout in the joint space of a backbone; without room for words, the semantic part has all the weight."""
        lexical = max(0, backbone.reserved_dims - _COMPLETIONS)
        semantic = backbone.dim - backbone.reserved_dims
        return cls(semantic, lexical, backbone.dim, semantic_weight if lexical else 1.0)

    def join(self, semantic: Tensor, lexical: Tensor, *, is_video: bool) -> Tensor:
        """Unit vectors ``[n, dim]`` of videos or queries.

        Args:
            semantic: Vectors of at most unit length ``[n, semantic]``.
            lexical: Vectors of at most unit length ``[n, lexical]``.
            is_video: Whether the vectors are those of videos. Queries and videos are completed to unit length in
                different coordinates, so that the completions add nothing to a cosine.
        """
        if not self.lexical:
            return F.normalize(semantic, dim=-1)
        beta = self.semantic_weight
        parts = torch.cat([beta**0.5 * semantic, (1 - beta) ** 0.5 * lexical], dim=-1)
        rest = (1 - parts.square().sum(dim=-1, keepdim=True)).clamp(min=0).sqrt()
        unused = torch.zeros_like(rest)
        completions = (rest, unused) if is_video else (unused, rest)
        return F.normalize(torch.cat([parts, *completions], dim=-1), dim=-1)


class _TensorFields:
    """Tensors of a dataclass by name, as a release stores them."""

    def tensors(self) -> dict[str, Tensor]:
        """Tensors by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device | None = None) -> Self:
        """Map with the tensors of a release.

        Raises:
            KeyError: A tensor is missing.
        """
        return cls(**{field.name: tensors[field.name].to(device) for field in fields(cls)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class AnalyticVideoMap(_TensorFields):
    """Affine map from features of videos to both parts of their vectors.

    Attributes:
        weight: ``[F, semantic + lexical]``.
        offset: ``[semantic + lexical]``.
        zero_shot_weight: Weight γ of the backbone's own vector in the semantic part, ``[]``.
    """

    weight: Tensor
    offset: Tensor
    zero_shot_weight: Tensor

    def __call__(self, backbone: Backbone, features: Tensor, layout: VectorLayout) -> Tensor:
        """Unit vectors ``[n, dim]`` of videos.

        Args:
            backbone: Backbone of the features.
            features: Features of the videos, ``[n, F]``.
            layout: Sizes of the parts of a vector.
        """
        mapped = features @ self.weight + self.offset
        semantic, lexical = mapped[:, : layout.semantic], mapped[:, layout.semantic :]
        frozen = backbone.project_features(features)[:, : layout.semantic]
        semantic = F.normalize(semantic + self.zero_shot_weight * frozen, dim=-1)
        lexical = F.normalize(lexical, dim=-1, eps=MIN_LENGTH)
        return layout.join(semantic, lexical, is_video=True)


@dataclass(frozen=True)
class AnalyticQueryMap(_TensorFields):
    """Tensors that turn the frozen vector and the tokens of a text into its query vector for one domain.

    :class:`~models.adapters.analytic_map_set.AnalyticMapSet` applies the maps of many domains.

    Attributes:
        center: Mean caption of the domain, which its queries are centered on, ``[semantic]``.
        caption_mean: Mean caption of the domain in its routing evidence, ``[semantic]``; empty without captions.
        tokens: Ids of the domain's tokens, ascending, ``[V]`` int64.
        token_weights: Inverse document frequency of each token, ``[V]``.
        unknown_token_weight: Weight of a token that no caption of the domain contains, ``[]``.
        lexicon: Lexical vector of each token, ``[V, lexical]``; half precision when learned, half the memory.
    """

    center: Tensor
    caption_mean: Tensor
    tokens: Tensor
    token_weights: Tensor
    unknown_token_weight: Tensor
    lexicon: Tensor

    @classmethod
    def neutral(cls, layout: VectorLayout) -> Self:
        """Map for a domain without captions: the frozen vector, no words, no routing evidence."""
        zero, none = torch.zeros(()), torch.empty(0)
        return cls(
            center=torch.zeros(layout.semantic),
            caption_mean=none,
            tokens=none.long(),
            token_weights=none,
            unknown_token_weight=zero,
            lexicon=torch.empty(0, layout.lexical),
        )
