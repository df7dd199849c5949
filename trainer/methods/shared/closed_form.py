"""Parts of closed-form methods: ridge regression, and the lexical space of a domain.

A regression over all tasks so far needs only sums over videos: of features, targets and their products. A method that
keeps these sums solves the joint problem without reading an old video (Zhuang et al., "ACIL: Analytic Class-Incremental
Learning", NeurIPS 2022; McDonnell et al., "RanPAC", NeurIPS 2023).

The lexical space is TF-IDF over the tokens of a domain's captions, compressed to a few coordinates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from models.routing.router import symmetric_matrix, upper_triangle

_FOLDS = 3
_MIN_COMPARED, _MAX_COMPARED = 20, 2048  # videos; a sample of larger domains
_STD_FLOOR = 0.02  # share of the features' root mean square that is added to each standard deviation


@dataclass(frozen=True)
class RegressionSums:
    """Sums over videos that determine a ridge regression, float64."""

    count: Tensor  # number of videos n, []
    features: Tensor  # Σ x, [F]
    products: Tensor  # Σ xᵀx, [F, F]
    targets: Tensor  # Σ y, [D]
    cross: Tensor  # Σ xᵀy, [F, D]

    @classmethod
    def empty(cls, features: int, targets: int) -> RegressionSums:
        """Start with the sums over no videos."""
        sizes = ((), (features,), (features, features), (targets,), (features, targets))
        return cls(*(torch.zeros(size, dtype=torch.float64) for size in sizes))

    def add(self, features: Tensor, targets: Tensor) -> RegressionSums:
        """Return new sums that include n more videos, with x ``[n, F]`` and y ``[n, D]``."""
        x, y = features.double().cpu(), targets.double().cpu()
        return RegressionSums(
            self.count + len(x),
            self.features + x.sum(0),
            self.products + x.T @ x,
            self.targets + y.sum(0),
            self.cross + x.T @ y,
        )

    def solve(self, penalty: float) -> tuple[Tensor, Tensor]:
        """Solve the ridge regression xW + b on standardized features with a penalty ρ on squared weights: W ``[F, D]``
        and b ``[D]``, float64; both are zero without videos.
        """
        n = float(self.count)
        if not n:
            return torch.zeros_like(self.cross), torch.zeros_like(self.targets)
        mean, target_mean = self.features / n, self.targets / n
        covariance = self.products - n * torch.outer(mean, mean)
        cross = self.cross - torch.outer(self.features, target_mean)
        std = (covariance.diagonal() / n).clamp(min=0).sqrt()
        std = std + _STD_FLOOR * (self.products.diagonal() / n).mean().sqrt() + 1e-12
        system = covariance / std[:, None] / std
        system.diagonal().add_(penalty)
        weights = torch.linalg.solve(system, cross / std[:, None]) / std[:, None]
        return weights, target_mean - mean @ weights

    def fit(self, features: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
        """Solve the regression over these and n more videos; see :meth:`add` and :meth:`solve`."""
        return self.add(features, targets).solve(penalty)

    def tensors(self) -> dict[str, Tensor]:
        """Convert to what a release stores: float32, and one triangle of the symmetric matrix."""
        stored = {name: getattr(self, name) for name in ("count", "features", "targets", "cross")}
        stored["products"] = torch.from_numpy(upper_triangle(self.products.numpy()))
        return {name: tensor.float() for name, tensor in stored.items()}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> RegressionSums:
        """Restore the sums from the result of :meth:`tensors`."""
        loaded = {name: tensor.double().cpu() for name, tensor in tensors.items()}
        loaded["products"] = torch.from_numpy(symmetric_matrix(loaded["products"].numpy()))
        return cls(**loaded)


def fit_ridge(features: Tensor, targets: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Fit a ridge regression on standardized features, as :meth:`RegressionSums.solve` does.

    With fewer videos than features, solve the dual problem, whose size is the number of videos. Features ``[n, F]`` and
    targets ``[n, D]``, n ≥ 1, give W ``[F, D]`` and b ``[D]``, float64.
    """
    x, y = features.double().cpu(), targets.double().cpu()
    n, size = x.shape
    if n >= size:
        return RegressionSums.empty(size, y.shape[1]).add(x, y).solve(penalty)
    mean, target_mean = x.mean(0), y.mean(0)
    std = x.std(0, correction=0) + _STD_FLOOR * x.square().mean().sqrt() + 1e-12
    z = (x - mean) / std
    system = z @ z.T
    system.diagonal().add_(penalty)
    weights = z.T @ torch.linalg.solve(system, y - target_mean) / std[:, None]
    return weights, target_mean - mean @ weights


def choose_penalty(
    features: Tensor,
    targets: Tensor,
    fit: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]],
    default: float,
    added: Tensor | None = None,
) -> float:
    """Choose a regression's penalty by cross-fitting: its predictions of left-out videos have the highest cosines.

    A power of √10 is chosen around the default, which is for too few videos to compare. ``fit`` computes W and b from
    features ``[n, F]``, targets ``[n, D]`` and a penalty. ``added [n, D]`` is added to targets and predictions before
    their cosine.
    """
    if len(features) < _MIN_COMPARED:
        return default
    sample = slice(None, None, -(-len(features) // _MAX_COMPARED))
    features, targets, added = features[sample], targets[sample], None if added is None else added[sample]
    folds = torch.arange(len(features)) % _FOLDS
    penalties = [default * 10 ** (step / 2) for step in range(-2, 3)]

    def total_cosine(penalty: float) -> float:
        total = 0.0
        for fold in range(_FOLDS):
            weight, offset = fit(features[folds != fold], targets[folds != fold], penalty)
            shift = 0.0 if added is None else added[folds == fold]
            predicted = features[folds == fold].double() @ weight + offset + shift
            total += float(cosine_similarity(predicted, targets[folds == fold] + shift, dim=-1).sum())
        return total

    return max(penalties, key=total_cosine)


_MAX_TOKENS = 2048  # most frequent tokens of a domain; in a large domain, rarer ones hardly change its space


@dataclass(frozen=True)
class Lexicon:
    """A domain's tokens and their vectors."""

    tokens: Tensor  # token IDs, ascending, [V]
    weights: Tensor  # inverse document frequency of each token, [V]
    unknown_weight: float  # weight of a token that occurs in no video of the domain
    # each token's row of the basis, [V, dim]. A text's vector is the weighted sum of its tokens' rows, divided by the
    # norm of its TF-IDF vector
    vectors: Tensor
    targets: Tensor  # centered lexical vectors of the videos, [n, dim]


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
    column_of = {token: column for column, token in enumerate(tokens.tolist())}
    counts = torch.zeros(n, len(tokens), dtype=torch.float64)
    for row, document in enumerate(documents):
        for token, count in Counter(document).items():
            if token in column_of:
                counts[row, column_of[token]] = 1 + math.log(count)
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
