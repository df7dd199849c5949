"""Maps of the analytic method: from frozen features to vectors of videos and queries. This module imports no torch.

A vector has three parts: the *semantic* part in the backbone's text space, the *lexical* part in a space for the
domain's own words, and two coordinates that complete queries and videos to unit length. With the semantic weight β, the
cosine between a query q and a video v is

    β · cos(semantic q, semantic v) + (1 − β) · κ(q) · cos(lexical q, lexical v)

where κ(q) is the share of the query's words, by TF-IDF weight, that the domain knows. The lexical part occupies the
backbone's reserved coordinates; without any, a vector has only the semantic part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

_COMPLETIONS = 2  # coordinates that complete queries and videos to unit length
MIN_LENGTH = 1e-8  # lower bound on lengths that vectors are divided by

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class _JointSpace(Protocol):
    """Sizes of the joint space, as backbones and query backbones have them."""

    @property
    def dim(self) -> int: ...

    @property
    def reserved_dims(self) -> int: ...


@dataclass(frozen=True)
class VectorLayout:
    """Sizes of a vector's parts.

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
    def for_backbone(cls, backbone: _JointSpace, semantic_weight: float) -> VectorLayout:
        """Lay out vectors in a backbone's joint space; without room for words, the semantic part has all the weight."""
        lexical = max(0, backbone.reserved_dims - _COMPLETIONS)
        semantic = backbone.dim - backbone.reserved_dims
        return cls(semantic, lexical, backbone.dim, semantic_weight if lexical else 1.0)

    def join(self, semantic: Floats, lexical: Floats, *, is_video: bool) -> Floats:
        """Join the parts to unit vectors ``[n, dim]`` of videos or queries.

        Args:
            semantic: Vectors of at most unit length ``[n, semantic]``.
            lexical: Vectors of at most unit length ``[n, lexical]``.
            is_video: Whether the vectors represent videos. Queries and videos are completed to unit length in
                different coordinates, so that this adds nothing to their cosine.
        """
        if not self.lexical:
            return normalize_rows(semantic)
        beta, size = self.semantic_weight, self.semantic + self.lexical
        vectors = np.zeros((len(semantic), self.dim), np.float32)
        np.multiply(semantic, np.float32(beta**0.5), out=vectors[:, : self.semantic])
        np.multiply(lexical, np.float32((1 - beta) ** 0.5), out=vectors[:, self.semantic : size])
        parts = vectors[:, :size]
        rest = np.sqrt(np.maximum(1 - np.vecdot(parts, parts), 0))
        vectors[:, size if is_video else size + 1] = rest
        return normalize_rows(vectors)


def normalize_rows(vectors: Floats, shortest: float = 1e-12) -> Floats:
    """Scale each row of ``vectors [n, d]`` to unit length; the result is the same bit for bit in any batch.

    Args:
        shortest: Lower bound on the lengths that rows are divided by.
    """
    lengths = np.maximum(np.sqrt(np.vecdot(vectors, vectors)), np.float32(shortest))
    return np.asarray(vectors / lengths[:, None], np.float32)


class _ArrayFields:
    """A dataclass of arrays, which a release stores by name."""

    def tensors(self) -> dict[str, Array]:
        """Collect the arrays by name, as a release stores them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> Self:
        """Restore a map from a release's tensors.

        Raises:
            KeyError: A tensor is missing.
        """
        return cls(**{field.name: tensors[field.name] for field in fields(cls)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class AnalyticVideoMap(_ArrayFields):
    """Affine map from video features to both parts of video vectors.

    Attributes:
        weight: ``[F, semantic + lexical]``.
        offset: ``[semantic + lexical]``.
        zero_shot_weight: Weight γ of the backbone's own vector within the semantic part, ``[]``.
    """

    weight: Floats
    offset: Floats
    zero_shot_weight: Floats

    def __call__(self, features: Floats, projected: Floats, layout: VectorLayout) -> Floats:
        """Map video features to unit vectors ``[n, dim]``.

        Args:
            features: Features of the videos, ``[n, F]``.
            projected: The backbone's own vectors for these features, ``[n, ≥ semantic]``.
        """
        mapped = features @ self.weight + self.offset
        semantic, lexical = mapped[:, : layout.semantic], mapped[:, layout.semantic :]
        semantic = normalize_rows(semantic + self.zero_shot_weight * projected[:, : layout.semantic])
        return layout.join(semantic, normalize_rows(lexical, MIN_LENGTH), is_video=True)


@dataclass(frozen=True)
class AnalyticQueryMap(_ArrayFields):
    """Arrays that turn a text's frozen vector and tokens into its query vector for one domain.

    :class:`~models.adapters.analytic_map_set.AnalyticMapSet` applies the maps of many domains.

    Attributes:
        center: The domain's mean caption, which its queries are centered on, ``[semantic]``.
        caption_mean: The domain's mean caption in its routing evidence, ``[semantic]``; empty without captions.
        tokens: IDs of the domain's tokens, ascending, ``[V]`` int64.
        token_weights: Inverse document frequency of each token, ``[V]``.
        unknown_token_weight: Weight of a token that no caption of the domain contains, ``[]``.
        lexicon: Lexical vector of each token, ``[V, lexical]``; learned maps keep half precision, to save memory.
    """

    center: Floats
    caption_mean: Floats
    tokens: npt.NDArray[np.int64]
    token_weights: Floats
    unknown_token_weight: Floats
    lexicon: npt.NDArray[np.floating]

    @classmethod
    def neutral(cls, layout: VectorLayout) -> Self:
        """Build the map for a domain without captions: the frozen vector, no words, no routing evidence."""
        none = np.empty(0, np.float32)
        return cls(
            center=np.zeros(layout.semantic, np.float32),
            caption_mean=none,
            tokens=none.astype(np.int64),
            token_weights=none,
            unknown_token_weight=np.zeros((), np.float32),
            lexicon=np.empty((0, layout.lexical), np.float32),
        )
