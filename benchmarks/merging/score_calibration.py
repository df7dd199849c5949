"""Ways to make scores of different shards comparable, to choose shards, and to pool frames, on matrices of scores.

A matrix of scores has a row for every text and a column for every video of all shards; ``rows [Q]`` and
``columns [G]`` say to which task each belongs. What a rule learns, it learns from captions of training or validation
videos, never from the queries that it is measured with.
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
    "hubs",
    "inverted_softmax",
    "keep_candidates",
    "late_interaction",
    "own_shard",
    "prototype_weights",
    "shard_posteriors",
    "shard_statistics",
    "standardise",
]

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]
Vectors = npt.NDArray[np.float32]

_TEXTS = 1024  # that meet frames at a time: scores of single frames are the largest array here
_RIDGE = 1e-3  # keeps a fit finite where the captions would have it grow for ever
_ITERATIONS = 50  # of Lloyd's algorithm; it has settled long before


# --- z-scores ---


def shard_statistics(cosines: Floats, rows: Ints, columns: Ints) -> tuple[Floats, Floats]:
    """Mean and standard deviation ``[T]`` of the scores of each task's texts with its own videos."""
    own = [cosines[np.ix_(rows == task, columns == task)] for task in range(int(columns.max()) + 1)]
    return np.array([block.mean() for block in own]), np.array([block.std() for block in own])


def standardise(cosines: Floats, columns: Ints, mean: Floats, deviation: Floats) -> Floats:
    """(s − μ) / σ, with two numbers ``[T]`` for every shard."""
    return np.asarray((cosines - mean[columns]) / deviation[columns])


# --- query banks ---


def own_shard(cosines: Floats, rows: Ints, columns: Ints) -> Floats:
    """−∞ for every video of another task than the text's."""
    return np.where(rows[:, None] == columns, cosines, -np.inf)


def bank_norms(bank: Floats, beta: float) -> Floats:
    """What a bank of captions says of each video, one number ``[G]`` to be stored: 1/β · log mean exp(β s).

    The mean is over the captions whose score is finite, so that banks of different sizes can be compared.

    Args:
        bank: ``[B, G]``, of captions with videos.
        beta: inverse temperature β.
    """
    highest = bank.max(axis=0)
    total = np.exp(beta * (bank - highest)).sum(axis=0)
    return np.asarray(highest + np.log(total / np.isfinite(bank).sum(axis=0)) / beta)


def hubs(bank: Floats) -> npt.NDArray[np.bool_]:
    """Which videos are the nearest of some caption of a bank ``[B, G]``; ``[G]``, one bit to be stored."""
    nearest = np.zeros(bank.shape[1], np.bool_)
    nearest[bank.argmax(axis=1)] = True
    return nearest


def inverted_softmax(cosines: Floats, norms: Floats) -> Floats:
    """Scores whose order is that of exp(β s(q, v)) / Σ_b exp(β s(b, v)), b being the captions of a bank.

    Smith, Turban, Hamblin and Hammerla, "Offline bilingual word vectors, orthogonal transformations and the inverted
    softmax" (ICLR 2017). In the log domain, divided by β, it is the cosine minus the video's number from
    :func:`bank_norms`.
    """
    return np.asarray(cosines - norms)


def dynamic_inverted_softmax(cosines: Floats, norms: Floats, hub: npt.NDArray[np.bool_]) -> Floats:
    """The inverted softmax where the best video of a query is a known hub, plain cosines elsewhere: QB-Norm.

    Bogolin, Croitoru, Jin, Liu and Albanie, "Cross Modal Retrieval with Querybank Normalisation" (CVPR 2022).
    """
    misled = hub[cosines.argmax(axis=1)]
    return np.where(misled[:, None], cosines - norms, cosines)


# --- learned temperatures ---


@dataclass(frozen=True)
class Affine:
    """a · s + b with an inverse temperature a and a bias b for every shard, and a weight for the evidence of words.

    Attributes:
        scale, shift: ``[T]``.
        words: nats per nat of evidence.
    """

    scale: Floats
    shift: Floats
    words: float = 0.0

    def __call__(self, cosines: Floats, columns: Ints, evidence: Floats | None = None) -> Floats:
        scores = cosines * self.scale[columns] + self.shift[columns]
        return np.asarray(scores if evidence is None else scores + self.words * evidence[:, columns])


def fit_scales(cosines: Floats, rows: Ints, columns: Ints, truth: Ints) -> Affine:
    """The inverse temperature of each shard under which its captions are likeliest to mean their videos.

    Each shard is fitted by itself: the likelihood of a caption is a softmax over the videos of its own task.

    Args:
        truth: ``[Q]``, column of each caption's video.
    """
    tasks = int(columns.max()) + 1
    scale = torch.zeros(tasks, dtype=torch.float64, requires_grad=True)  # logarithm of a
    held = torch.from_numpy(rows[:, None] != columns)
    own, of = torch.from_numpy(np.asarray(cosines, np.float64)), torch.from_numpy(columns)

    def loss() -> Tensor:
        scores = (own * scale.exp()[of]).masked_fill(held, -torch.inf)
        return (
            torch.nn.functional.cross_entropy(scores, torch.from_numpy(truth))
            + _RIDGE * scale.square().mean()
        )

    _minimise(loss, [scale])
    return Affine(scale.detach().exp().numpy(), np.zeros(tasks))


def fit_affine(cosines: Floats, columns: Ints, truth: Ints, evidence: Floats | None = None) -> Affine:
    """The inverse temperature and bias of each shard under which captions are likeliest to mean their videos.

    The likelihood of a caption is a softmax over the videos of all tasks, so all shards are fitted together; with
    evidence ``[Q, T]``, its weight as well.
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

    _minimise(loss, [scale, shift, words])
    return Affine(scale.detach().exp().numpy(), shift.detach().numpy(), words.item())


def _minimise(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
    optimiser = torch.optim.LBFGS(
        parameters, max_iter=200, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(closure)  # type: ignore[arg-type]


def shard_posteriors(scores: Floats, columns: Ints) -> Floats:
    """log p(video | text, its task): the log-softmax of a text's scores within each shard."""
    result = np.empty(scores.shape)
    for task in np.unique(columns):
        block = scores[:, columns == task]
        block = block - block.max(axis=1, keepdims=True)
        result[:, columns == task] = block - np.log(np.exp(block).sum(axis=1, keepdims=True))
    return result


# --- routing ---


def keep_candidates(scores: Floats, columns: Ints, weights: Floats, r: int) -> Floats:
    """Search the r likeliest tasks of each text first: all their videos come before those of any other task.

    Args:
        weights: ``[Q, T]``, of every text and task; their scale does not matter.
    """
    candidates = np.zeros(weights.shape, np.bool_)
    np.put_along_axis(candidates, np.argsort(-weights, axis=1, kind="stable")[:, :r], True, axis=1)
    scores = np.asarray(scores, np.float64)
    return np.where(candidates[:, columns], scores, scores - 1 - np.ptp(scores))


def centroids(vectors: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Unit centroids ``[min(k, n), dim]`` of unit vectors ``[n, dim]``: spherical k-means.

    Dhillon and Modha, "Concept decompositions for large sparse text data using clustering" (Machine Learning 2001). It
    starts from a vector at random and then always from the one that is farthest from those chosen.
    """
    chosen = [int(rng.integers(len(vectors)))]
    while len(chosen) < min(k, len(vectors)):
        chosen.append(int((vectors @ vectors[chosen].T).max(axis=1).argmin()))
    centres = vectors[chosen]
    for _ in range(_ITERATIONS):
        nearest = (vectors @ centres.T).argmax(axis=1)
        sums = np.stack(
            [
                vectors[nearest == c].sum(axis=0) if (nearest == c).any() else centres[c]
                for c in range(len(centres))
            ]
        )
        moved = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        if np.allclose(moved, centres):
            break
        centres = moved
    return np.asarray(centres)


def prototype_weights(texts: Floats, prototypes: Sequence[Floats]) -> Floats:
    """``[Q, T]``: cosine of each text with the nearest of each task's prototypes ``[k, dim]``."""
    return np.stack([(texts @ task.T).max(axis=1) for task in prototypes], axis=1)


# --- frames ---


def late_interaction(texts: Vectors, frames: Vectors, tau: float) -> Vectors:
    """Scores ``[Q, G]`` of texts ``[Q, dim]`` with the frame vectors ``[G, M, dim]`` of videos.

    The mean of a text's cosines with the frames, weighted by their softmax at temperature τ; at 0, the largest.
    """
    parts = []
    for start in range(0, len(texts), _TEXTS):
        cosines = np.einsum("qd,gmd->qgm", texts[start : start + _TEXTS], frames, optimize=True)
        if tau == 0:
            parts.append(cosines.max(axis=2))
            continue
        weights = np.exp((cosines - cosines.max(axis=2, keepdims=True)) / tau)
        parts.append((weights * cosines).sum(axis=2) / weights.sum(axis=2))
    return np.concatenate(parts)
