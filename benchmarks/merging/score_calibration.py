"""Calibration of scores across shards, hard routing and frame pooling, as functions of score matrices.

A score matrix has one row per text and one column per video of all shards; ``rows [Q]`` and ``columns [G]`` are the
task of each. Rules are fitted to captions of training or validation videos, never to the queries of the evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = [
    "Affine",
    "bank_norms",
    "centroids",
    "dynamic_inverted_softmax",
    "fit_affine",
    "fit_scales",
    "inverted_softmax",
    "keep_candidates",
    "late_interaction",
    "own_shard",
    "prototype_weights",
    "query_hubs",
    "shard_posteriors",
    "shard_statistics",
    "standardize",
]

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]
Vectors = npt.NDArray[np.float32]

_RIDGE = 1e-3  # keeps a fit finite where the likelihood has no maximum
_ITERATIONS = 50  # upper bound of Lloyd's algorithm, which converges much earlier


# --- z-scores ---


def shard_statistics(cosines: Floats, rows: Ints, columns: Ints) -> tuple[Floats, Floats]:
    """Mean and standard deviation ``[T]`` of the scores of each task's texts with the videos of the same task."""
    own = [cosines[np.ix_(rows == task, columns == task)] for task in range(int(columns.max()) + 1)]
    return np.array([block.mean() for block in own]), np.array([block.std() for block in own])


def standardize(cosines: Floats, columns: Ints, mean: Floats, deviation: Floats) -> Floats:
    """Z-scores (s − μ) / σ, with a mean and a deviation ``[T]`` per shard."""
    return np.asarray((cosines - mean[columns]) / deviation[columns])


# --- query banks ---


def own_shard(cosines: Floats, rows: Ints, columns: Ints) -> Floats:
    """The scores, with −∞ for every video of another task than the text's."""
    return np.where(rows[:, None] == columns, cosines, -np.inf)


def bank_norms(bank: Floats, beta: float) -> Floats:
    """Soft maximum of each video's scores with a query bank, 1/β · log mean exp(β s); one stored number per video.

    The mean is over the captions with a finite score, so that banks of different sizes are comparable.

    Args:
        bank: Scores of the bank's captions with the videos ``[B, G]``.
        beta: Inverse temperature β.
    """
    highest = bank.max(axis=0)
    total = np.exp(beta * (bank - highest)).sum(axis=0)
    return np.asarray(highest + np.log(total / np.isfinite(bank).sum(axis=0)) / beta)


def query_hubs(bank: Floats) -> npt.NDArray[np.bool_]:
    """Videos that are the nearest of some caption of a bank ``[B, G]``: ``bool [G]``, one stored bit per video."""
    nearest = np.zeros(bank.shape[1], np.bool_)
    nearest[bank.argmax(axis=1)] = True
    return nearest


def inverted_softmax(cosines: Floats, norms: Floats) -> Floats:
    """Scores in the order of exp(β s(q, v)) / Σ_b exp(β s(b, v)), where b runs over the captions of a bank.

    Smith, Turban, Hamblin and Hammerla, "Offline bilingual word vectors, orthogonal transformations and the inverted
    softmax" (ICLR 2017). In the log domain and divided by β, the score is the cosine minus the result of
    :func:`bank_norms`.
    """
    return np.asarray(cosines - norms)


def dynamic_inverted_softmax(cosines: Floats, norms: Floats, hub: npt.NDArray[np.bool_]) -> Floats:
    """QB-Norm: the inverted softmax for queries whose best video is a hub, plain cosines for all others.

    Bogolin, Croitoru, Jin, Liu and Albanie, "Cross Modal Retrieval with Querybank Normalisation" (CVPR 2022).
    """
    has_hub = hub[cosines.argmax(axis=1)]
    return np.where(has_hub[:, None], cosines - norms, cosines)


# --- learned temperatures ---


@dataclass(frozen=True)
class Affine:
    """Affine calibration a · s + b with an inverse temperature a and a bias b per shard, plus weighted evidence.

    Attributes:
        scale: Inverse temperatures a ``[T]``.
        shift: Biases b ``[T]``.
        words: Weight of the routing evidence, in nats per nat.
    """

    scale: Floats
    shift: Floats
    words: float = 0.0

    def __call__(self, cosines: Floats, columns: Ints, evidence: Floats | None = None) -> Floats:
        scores = cosines * self.scale[columns] + self.shift[columns]
        return np.asarray(scores if evidence is None else scores + self.words * evidence[:, columns])


def fit_scales(cosines: Floats, rows: Ints, columns: Ints, truth: Ints) -> Affine:
    """Fit the inverse temperature of each shard by maximum likelihood of the captions' videos.

    Each shard is fitted separately: the likelihood of a caption is a softmax over the videos of its own task.

    Args:
        cosines: Scores ``[Q, G]``.
        rows: Task of each caption ``[Q]``.
        columns: Task of each video ``[G]``.
        truth: Column of each caption's video ``[Q]``.
    """
    tasks = int(columns.max()) + 1
    scale = torch.zeros(tasks, dtype=torch.float64, requires_grad=True)  # logarithm of a
    foreign = torch.from_numpy(rows[:, None] != columns)
    own, of = torch.from_numpy(np.asarray(cosines, np.float64)), torch.from_numpy(columns)

    def loss() -> Tensor:
        scores = (own * scale.exp()[of]).masked_fill(foreign, -torch.inf)
        return (
            torch.nn.functional.cross_entropy(scores, torch.from_numpy(truth))
            + _RIDGE * scale.square().mean()
        )

    _minimize(loss, [scale])
    return Affine(scale.detach().exp().numpy(), np.zeros(tasks))


def fit_affine(cosines: Floats, columns: Ints, truth: Ints, evidence: Floats | None = None) -> Affine:
    """Fit the inverse temperature and bias of each shard by maximum likelihood of the captions' videos.

    The likelihood of a caption is a softmax over the videos of all tasks, so all shards are fitted jointly.

    Args:
        cosines: Scores ``[Q, G]``.
        columns: Task of each video ``[G]``.
        truth: Column of each caption's video ``[Q]``.
        evidence: Routing evidence ``[Q, T]``; if given, its weight is fitted as well.
    """
    tasks = int(columns.max()) + 1
    scale, shift = (torch.zeros(tasks, dtype=torch.float64, requires_grad=True) for _ in range(2))
    words = torch.zeros((), dtype=torch.float64, requires_grad=True)
    union, of = torch.from_numpy(np.asarray(cosines, np.float64)), torch.from_numpy(columns)
    lift = 0.0 if evidence is None else torch.from_numpy(np.asarray(evidence[:, columns], np.float64))

    def loss() -> Tensor:
        scores = union * scale.exp()[of] + shift[of] + words * lift
        ridge = scale.square().mean() + shift.square().mean() + words.square()
        return torch.nn.functional.cross_entropy(scores, torch.from_numpy(truth)) + _RIDGE * ridge

    _minimize(loss, [scale, shift, words])
    return Affine(scale.detach().exp().numpy(), shift.detach().numpy(), words.item())


def _minimize(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[arg-type]


def shard_posteriors(scores: Floats, columns: Ints) -> Floats:
    """Log-softmax of a text's scores within each shard: log p(video | text, task of the video)."""
    result = np.empty(scores.shape)
    for task in np.unique(columns):
        block = scores[:, columns == task]
        block = block - block.max(axis=1, keepdims=True)
        result[:, columns == task] = block - np.log(np.exp(block).sum(axis=1, keepdims=True))
    return result


# --- routing ---


def keep_candidates(scores: Floats, columns: Ints, weights: Floats, r: int) -> Floats:
    """Rank all videos of the r likeliest tasks of each text before the videos of any other task.

    Args:
        scores: Scores ``[Q, G]``.
        columns: Task of each video ``[G]``.
        weights: Router weights ``[Q, T]``; only their order matters.
        r: Number of candidate tasks.
    """
    candidates = np.zeros(weights.shape, np.bool_)
    np.put_along_axis(candidates, np.argsort(-weights, axis=1, kind="stable")[:, :r], True, axis=1)
    scores = np.asarray(scores, np.float64)
    return np.where(candidates[:, columns], scores, scores - 1 - np.ptp(scores))


def centroids(vectors: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Unit centroids ``[min(k, n), dim]`` of unit vectors ``[n, dim]`` by spherical k-means.

    Dhillon and Modha, "Concept decompositions for large sparse text data using clustering" (Machine Learning 2001).
    The first seed is a random vector, each further seed the vector that is farthest from the earlier seeds.
    """
    chosen = [int(rng.integers(len(vectors)))]
    while len(chosen) < min(k, len(vectors)):
        chosen.append(int((vectors @ vectors[chosen].T).max(axis=1).argmin()))
    centers = vectors[chosen]
    for _ in range(_ITERATIONS):
        nearest = (vectors @ centers.T).argmax(axis=1)
        sums = np.stack(
            [
                vectors[nearest == c].sum(axis=0) if (nearest == c).any() else centers[c]
                for c in range(len(centers))
            ]
        )
        moved = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        if np.allclose(moved, centers):
            break
        centers = moved
    return np.asarray(centers)


def prototype_weights(texts: Floats, prototypes: Sequence[Floats]) -> Floats:
    """Router weights ``[Q, T]``: cosine of each text with the nearest of each task's prototypes ``[k, dim]``."""
    return np.stack([(texts @ task.T).max(axis=1) for task in prototypes], axis=1)


# --- frames ---


def late_interaction(texts: Vectors, frames: Vectors, tau: float, texts_per_chunk: int = 1024) -> Vectors:
    """Scores ``[Q, G]`` of texts ``[Q, dim]`` with the frame vectors ``[G, M, dim]`` of videos.

    A score is the mean of the text's cosines with the frames, weighted by their softmax at temperature τ; at τ = 0
    it is the largest cosine. Texts are processed in chunks, since the scores of single frames take the most memory.
    """
    parts = []
    for chunk in np.split(texts, range(texts_per_chunk, len(texts), texts_per_chunk)):
        cosines = np.einsum("qd,gmd->qgm", chunk, frames, optimize=True)
        if tau == 0:
            parts.append(cosines.max(axis=2))
            continue
        weights = np.exp((cosines - cosines.max(axis=2, keepdims=True)) / tau)
        parts.append((weights * cosines).sum(axis=2) / weights.sum(axis=2))
    return np.concatenate(parts)
