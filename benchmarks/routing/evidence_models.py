"""Evidence of texts for tasks: classifiers that are estimated from the training captions of each task.

All kinds of evidence are scores ``[Q, T]`` of queries and tasks; higher is likelier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from models.routing.token_statistics import token_profile

__all__ = [
    "BACKGROUND_CAPTIONS",
    "gaussian_evidence",
    "logistic_evidence",
    "multinomial_evidence",
    "profile_evidence",
    "token_counts",
    "within_task_precision",
]

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

BACKGROUND_CAPTIONS = 200  # weight of the background covariance, in captions
_SMOOTHING = 0.1  # pseudo-count of each token in multinomial naive Bayes
_PSEUDO_CAPTIONS = 1.0  # weight of the background mean in the mean of a task
_INVERSE_PENALTY = 10.0  # of the logistic regression


def token_counts(tokens: Sequence[Ints], labels: Ints, vocabulary: int) -> Floats:
    """Number of captions of each task that contain each token, ``[T, V]``.

    Args:
        tokens: Distinct token ids of each training caption.
        labels: Task of each training caption.
        vocabulary: Vocabulary size V.
    """
    counts = np.zeros((int(labels.max()) + 1, vocabulary))
    for ids, label in zip(tokens, labels, strict=True):
        counts[label, ids] += 1
    return counts


def profile_evidence(counts: Floats, queries: Sequence[Ints]) -> Floats:
    """Evidence of the router: the sum of the routing profile over the tokens of a text.

    Args:
        counts: Token counts of the tasks, ``[T, V]``.
        queries: Distinct token ids of each query.
    """
    return _token_sums(np.stack([token_profile(torch.from_numpy(row)).numpy() for row in counts]), queries)


def multinomial_evidence(counts: Floats, queries: Sequence[Ints]) -> Floats:
    """Log-likelihood of multinomial naive Bayes with additive smoothing; arguments of :func:`profile_evidence`."""
    smoothed = counts + _SMOOTHING
    return _token_sums(np.log(smoothed / smoothed.sum(axis=1, keepdims=True)), queries)


def gaussian_evidence(
    vectors: Floats, labels: Ints, queries: Floats, mean: Floats, precision: Floats
) -> Floats:
    """Log-likelihood ratio of a task and the background, Gaussians of equal covariance.

    (mu_t - m)ᵀ P (q - (mu_t + m) / 2), with mu_t the mean of the task's captions and of one caption at the background
    mean m (linear discriminant analysis; Fisher, Annals of Eugenics, 1936).

    Args:
        vectors: Unit text vectors of the training captions, ``[n, dim]``.
        labels: Task of each training caption.
        queries: Unit text vectors of the queries, ``[Q, dim]``.
        mean: Mean of generic texts, ``[dim]``.
        precision: Inverse covariance, ``[dim, dim]``.
    """
    counts = np.bincount(labels)[:, None]
    shifts = (_sums(vectors, labels) - counts * mean) / (counts + _PSEUDO_CAPTIONS)
    projected = shifts @ precision
    return np.asarray((queries - mean) @ projected.T - 0.5 * (projected * shifts).sum(axis=1))


def within_task_precision(vectors: Floats, labels: Ints, background: Floats) -> Floats:
    """Inverse of the covariance of captions within their tasks, shrunk to that of generic texts.

    The sum over tasks of the scatter around each task's mean has constant size, and each task adds to it once.

    Args:
        vectors: Unit text vectors of the training captions, ``[n, dim]``.
        labels: Task of each training caption.
        background: Covariance of generic texts, ``[dim, dim]``.
    """
    counts = np.bincount(labels)
    residuals = vectors - (_sums(vectors, labels) / np.maximum(counts, 1)[:, None])[labels]
    freedom = len(vectors) - np.count_nonzero(counts)
    shrunk = residuals.T @ residuals + BACKGROUND_CAPTIONS * background
    return np.asarray(np.linalg.inv(shrunk / (freedom + BACKGROUND_CAPTIONS)))


def logistic_evidence(vectors: Floats, labels: Ints, queries: Floats) -> Floats:
    """Scores of a softmax regression with a quadratic penalty, fitted to all training captions at once.

    Args:
        vectors: Features of the training captions, ``[n, W]``.
        labels: Task of each training caption.
        queries: Features of the queries, ``[Q, W]``.
    """
    features, targets = torch.from_numpy(vectors).float(), torch.from_numpy(labels)
    weights = torch.zeros(features.shape[1], int(labels.max()) + 1, requires_grad=True)
    offset = torch.zeros(weights.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weights, offset], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        entropy = F.cross_entropy(features @ weights + offset, targets, reduction="sum")
        value = (entropy + weights.square().sum() / (2 * _INVERSE_PENALTY)) / len(features)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    scores = torch.from_numpy(queries).float() @ weights.detach() + offset.detach()
    return scores.double().numpy()


def _token_sums(table: Floats, queries: Sequence[Ints]) -> Floats:
    """Sum of the columns of a table ``[T, V]`` over the tokens of each query, ``[Q, T]``."""
    return np.stack([table[:, ids].sum(axis=1) for ids in queries])


def _sums(rows: Floats, labels: Ints) -> Floats:
    """Sum of the rows of each task, ``[T, width]``."""
    sums = np.zeros((int(labels.max()) + 1, rows.shape[1]))
    np.add.at(sums, labels, rows)
    return sums
