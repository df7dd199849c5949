"""Evidence of texts for tasks: classifiers that are estimated from the training captions of each task.

All kinds of evidence are scores ``[Q, T]`` of queries and tasks; higher is likelier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from models.backbones.backbone import TextBackground
from models.routing.caption_evidence import CaptionEvidence, CaptionScatter
from models.routing.token_statistics import token_profile

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

_SMOOTHING = 0.1  # pseudo-count of each token in multinomial naive Bayes
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


def caption_evidence(
    vectors: Floats, labels: Ints, queries: Floats, background: TextBackground, *, within_tasks: bool
) -> Floats:
    """Evidence of mean captions, see :mod:`models.routing.caption_evidence`.

    Args:
        vectors: Text vectors of the training captions, ``[n, dim]``.
        labels: Task of each training caption.
        queries: Text vectors of the queries, ``[Q, dim]``.
        background: Distribution of generic texts.
        within_tasks: Whether the covariance is that of captions within tasks; otherwise it is that of generic texts.
    """
    size = len(background.mean)
    scatter, means = CaptionScatter.empty(size), []
    for label in range(int(labels.max()) + 1):
        captions = torch.from_numpy(vectors[labels == label, :size])
        scatter = scatter.add(captions) if within_tasks else scatter
        # As in the method analytic: the mean with one caption at the origin.
        means.append(captions.sum(dim=0) / (len(captions) + 1))
    evidence = CaptionEvidence(scatter, background, list(means), 1.0)
    return evidence(torch.from_numpy(queries), torch.arange(len(means))).numpy()


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
