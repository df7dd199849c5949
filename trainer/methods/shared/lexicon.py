"""Lexical space of a domain: TF-IDF over its captions' tokens, compressed to a few coordinates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_MAX_TOKENS = 2048  # most frequent tokens of a domain; in a large domain, rarer ones hardly change its space


@dataclass(frozen=True)
class Lexicon:
    """A domain's tokens and their vectors.

    Attributes:
        tokens: Token IDs, ascending, ``[V]``.
        weights: Inverse document frequency of each token, ``[V]``.
        unknown_weight: Weight of a token that occurs in no video of the domain.
        vectors: Each token's row of the basis, ``[V, dim]``. A text's vector is the weighted sum of its tokens' rows,
            divided by the norm of its TF-IDF vector.
        targets: Centered lexical vectors of the videos, ``[n, dim]``.
    """

    tokens: Tensor
    weights: Tensor
    unknown_weight: float
    vectors: Tensor
    targets: Tensor


def build_lexicon(
    documents: Sequence[Sequence[int]], dim: int, center: float, like: Lexicon | None = None
) -> Lexicon:
    """Build a lexicon from the captions of n ≥ 1 videos.

    A video's TF-IDF vector has a coordinate (1 + log tf) · idf per token, with idf = 1 + log((1 + n) / (1 + df)), and
    unit length. The basis consists of the leading right singular vectors of the centered vectors, so an inner product
    with a compressed vector equals the one with the best rank-``dim`` approximation of the original.

    Args:
        documents: For each video, the token IDs of all its captions.
        dim: Number of coordinates; a domain with fewer directions leaves the rest zero.
        center: Share of the mean vector to subtract, 0..1; less than 1 for small domains.
        like: Lexicon to whose basis the basis is rotated, so that vectors of both can be compared. This changes no
            inner product.
    """
    n = len(documents)
    frequency = Counter(token for document in documents for token in set(document))
    common = [
        token for token, _ in sorted(frequency.items(), key=lambda item: (-item[1], item[0]))[:_MAX_TOKENS]
    ]
    tokens = torch.tensor(sorted(common), dtype=torch.int64)
    column = {token: place for place, token in enumerate(tokens.tolist())}
    counts = torch.zeros(n, len(tokens), dtype=torch.float64)
    for row, document in enumerate(documents):
        for token, count in Counter(document).items():
            if token in column:
                counts[row, column[token]] = 1 + math.log(count)
    document_frequency = (counts > 0).sum(0).double()
    weights = ((1 + n) / (1 + document_frequency)).log() + 1
    vectors = torch.nn.functional.normalize(counts * weights, dim=1)
    centered = vectors - center * vectors.mean(0)
    basis = torch.zeros(len(tokens), dim, dtype=torch.float64)
    leading = _right_singular_vectors(centered)[:, :dim]
    basis[:, : leading.shape[1]] = leading
    if like is not None:
        basis = basis @ _rotation(basis, tokens, like)
    return Lexicon(tokens, weights, math.log(1 + n) + 1, basis, centered @ basis)


def _rotation(basis: Tensor, tokens: Tensor, like: Lexicon) -> Tensor:
    """Compute the rotation of a basis that is nearest to another lexicon's on the tokens of both (Procrustes)."""
    _, rows, others = np.intersect1d(tokens.numpy(), like.tokens.numpy(), return_indices=True)
    left, _, right = torch.linalg.svd(basis[rows].T @ like.vectors[others])
    return left @ right


def _right_singular_vectors(matrix: Tensor) -> Tensor:
    """Compute the right singular vectors ``[V, r]`` of ``[n, V]`` with non-zero singular values, largest first."""
    if not matrix.shape[1]:
        return matrix.new_empty(0, 0)
    if matrix.shape[0] <= matrix.shape[1]:
        _, values, rows = torch.linalg.svd(matrix, full_matrices=False)
        return rows[values > 1e-9].T
    values, vectors = torch.linalg.eigh(matrix.T @ matrix)
    return vectors.flip(1)[:, values.flip(0) > 1e-12]
