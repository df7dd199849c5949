"""Routing evidence: how likely the word pieces of a query are under each task's routing profile.

The captions of a domain use characteristic words, which identify the domain long before an encoder has learned what
they mean. Each task has a *routing profile*, one number per token of the vocabulary; a text scores the sum over its
tokens, as in a naive Bayes classifier. A profile needs no training and no second model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from models.backbones.backbone_description import TextBackground
from models.routing.routing_profiles import RoutingProfiles

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64] | slice

# Upper bound on computed cosines. Vectors that were once stored in half precision can exceed 1 slightly, because
# bfloat16 can lengthen each of them by a factor of 1 + 2⁻⁹.
COSINE_LIMIT = 1.01

# Odds that the words of a text say nothing about its task; this bounds the evidence.
_UNRELATED = 0.2
# Bound on the differences between captions, in nats, because the evidence of a text that is shorter than any caption
# differs by a hundred nats between tasks that are equally far from it.
_CAPTIONS_BOUND = 0.5


def as_slice(indices: npt.NDArray[np.int64]) -> Indices:
    """Convert consecutive indices to a slice, which selects from an array without copying."""
    is_consecutive = len(indices) and (np.diff(indices) == 1).all()
    return slice(int(indices[0]), int(indices[-1]) + 1) if is_consecutive else indices


def can_reach_score(
    bounds: npt.NDArray[np.floating],
    lowest: npt.NDArray[np.floating] | float,
    limit: npt.NDArray[np.floating] | float = COSINE_LIMIT,
) -> npt.NDArray[np.bool_]:
    """Check whether a video of each task could score at least ``lowest`` for a text.

    A video's score in the union of all shards is its visual score, which grows with the cosine, plus the task's routing
    term. The routing term is known before the text is encoded for the shard, and the cosine is bounded. If their sum
    stays below ``lowest``, the text need not be encoded for the task and no result is lost: this is a bound, not a
    heuristic. Where ``lowest`` rises from shard to shard, as the k-th best score does, likely tasks should come first.

    Args:
        bounds: Routing term of each text and task, any shape.
        lowest: Lowest score that changes the results, broadcastable to ``bounds``; −∞ if every score does.
        limit: Upper bound on the visual scores, broadcastable to ``bounds``. A lower, merely likely bound turns the
            check into a heuristic.
    """
    return np.asarray(bounds + limit >= lowest)


def log_weights(presence: Floats, profiles: Floats) -> Floats:
    """Compute each task's log-probability for each text, ``[n, T]``; the probabilities of a text sum to one.

    A task without captions has no routing evidence of its own; it gets the score of the likeliest other task.
    Arguments: :func:`~models.routing.routing_profiles.piece_presence` ``[n, V]`` and
    :func:`~models.routing.routing_profiles.token_profile` ``[T, V]``.
    """
    scores = presence @ profiles.T
    fill_uncaptioned(scores, np.asarray(profiles.any(axis=1)))
    return log_probabilities(scores)


def log_probabilities(evidence: npt.NDArray[np.floating]) -> Floats:
    """Normalize the evidence ``[..., T]`` for all tasks to log-probabilities, in nats."""
    scores = evidence - evidence.max(axis=-1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True)), np.float32)


class Router:
    """Routing profiles of all tasks, indexed by token: the cost of a query grows with its length, not with V."""

    def __init__(self, profiles: RoutingProfiles) -> None:
        self.profiles = profiles
        order = np.argsort(profiles.tokens, kind="stable")
        self._tasks, self._values = profiles.rows[order], profiles.values[order]
        # Where the entries of each token start, and where the last ones end.
        self._starts = np.cumsum(np.append(0, np.bincount(profiles.tokens, minlength=profiles.vocabulary)))
        self._has_captions = profiles.has_captions

    def route(
        self, tokens: npt.NDArray[np.int64], tasks: Indices, captions: Floats | None = None
    ) -> tuple[Floats, Floats, TextEvidence]:
        """Compute T tasks' log weights for a text and their bounded evidence, ``[T]``, and summarize the evidence.

        Bounded evidence leaves no task far behind; the best one has 0. With some probability, the text has the task
        that the evidence says; otherwise, any task is equally likely. So the bound rises with the logarithm of the
        number of tasks, as does the evidence that the right one needs.

        Args:
            tokens: Distinct word pieces of the text.
            tasks: Indices of the tasks, ``[T]``.
            captions: Evidence of their captions for the text, in nats, ``[T]``.
        """
        has_captions = self._has_captions[tasks]
        words, coverage = self.word_evidence(tokens, tasks)
        captions = np.zeros_like(words) if captions is None else captions
        summary = summarize_evidence(
            words, captions, coverage=coverage, has_captions=has_captions, tokens=len(tokens)
        )
        total = words + captions
        bounded = words + np.maximum(captions - captions.max(), -_CAPTIONS_BOUND)
        fill_uncaptioned(total, has_captions)
        fill_uncaptioned(bounded, has_captions)
        mixed = np.log(np.exp(log_probabilities(bounded)) + np.float32(_UNRELATED / max(1, len(bounded))))
        return log_probabilities(total), np.asarray(mixed - mixed.max(), np.float32), summary

    def word_evidence(self, tokens: npt.NDArray[np.int64], tasks: Indices) -> tuple[Floats, Floats]:
        """Compute what the captions of some tasks say about a text's distinct word pieces: the sum of their profile
        values, as log-odds, and the share of them that the captions contain, for each of the tasks.
        """
        sums, counts = self.sum_tokens(tokens)
        coverage = counts[tasks] / max(1, len(tokens))
        return np.asarray(sums[tasks], np.float32), np.asarray(coverage, np.float32)

    def sum_tokens(self, tokens: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Sum the profile values of distinct word pieces, and count those in the captions, for all tasks, ``[T]``."""
        spans = [slice(self._starts[token], self._starts[token + 1]) for token in tokens] or [slice(0)]
        tasks = np.concatenate([self._tasks[span] for span in spans])
        values = np.concatenate([self._values[span] for span in spans])
        count = len(self._has_captions)
        return np.bincount(tasks, values, count), np.bincount(tasks, minlength=count)


def fill_uncaptioned(scores: npt.NDArray[np.floating], has_captions: npt.NDArray[np.bool_]) -> None:
    """Give tasks without captions, in place, the score of the likeliest other task, in scores ``[..., T]``."""
    if has_captions.any() and not has_captions.all():
        scores[..., ~has_captions] = scores[..., has_captions].max(axis=-1, keepdims=True)


class TextEvidence(NamedTuple):
    """How well the searched tasks know a text."""

    familiarity: float  # routing evidence per token for the likeliest task, in nats
    log_weight: float  # highest log weight of a task; at most 0
    words: float = 0.0  # highest evidence of the words for a task, per token, in nats
    captions: float = 0.0  # highest evidence of the captions for a task, in nats; 0 if the encoder has none
    # highest share of the text's distinct tokens that the captions of one task contain, 0..1
    coverage: float = 0.0


def summarize_evidence(
    words: npt.NDArray[np.floating],
    captions: npt.NDArray[np.floating],
    coverage: npt.NDArray[np.floating],
    has_captions: npt.NDArray[np.bool_],
    tokens: int,
) -> TextEvidence:
    """Summarize the evidence of words and captions, in nats, that a text gives for T ≥ 1 tasks, all ``[T]``.

    The coverage is the share of the text's distinct tokens that a task's captions contain; a task has evidence of its
    own if it has captions.
    """
    total = (words + captions).astype(np.float64)
    fill_uncaptioned(total, has_captions)
    familiarity = float(total.max()) / tokens if tokens else 0.0
    log_weight = float(log_probabilities(total).max())
    if not has_captions.any() or not tokens:
        return TextEvidence(familiarity, log_weight)
    known = slice(None) if has_captions.all() else has_captions
    return TextEvidence(
        familiarity,
        log_weight,
        words=float(words[known].max()) / tokens,
        captions=float(captions[known].max()),
        coverage=float(coverage[known].max()),
    )


def upper_triangle(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Select what a release stores of a symmetric matrix ``[n, n]``: ``[n (n + 1) / 2]``."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric_matrix(triangle: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Invert :func:`upper_triangle`."""
    size = int(np.sqrt(2 * len(triangle)))
    matrix = np.empty((size, size), triangle.dtype)
    rows, columns = np.triu_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = triangle
    return matrix


_CACHED_TASKS = 1024  # whose weights stay in a processor's cache while they are multiplied with several texts

# How many captions the covariance of generic texts counts as. Chosen on training captions; 50 to 800 differ by a point.
_BACKGROUND_CAPTIONS = 200


@dataclass(frozen=True)
class CaptionScatter:
    """Scatter of caption vectors around their task's mean, summed over tasks."""

    scatter: Floats  # sum of outer products of centered vectors, [D, D]; a release stores the upper triangle
    freedom: Floats  # number of captions minus number of tasks, []

    @classmethod
    def empty(cls, dim: int) -> Self:
        """Start with no captions."""
        return cls(np.zeros((dim, dim), np.float32), np.zeros((), np.float32))

    def add(self, captions: Floats) -> CaptionScatter:
        """Include the captions of another task, ``[n, D]``, n ≥ 1."""
        centered = (captions - captions.mean(axis=0)).astype(np.float64)
        scatter = (self.scatter + centered.T @ centered).astype(np.float32)
        return CaptionScatter(scatter, np.asarray(self.freedom + (len(captions) - 1), np.float32))

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Collect the arrays by name, as a release stores them."""
        return {"scatter": upper_triangle(self.scatter), "freedom": self.freedom}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Restore what :meth:`tensors` returned, or a square matrix of version 1.0.0."""
        stored = tensors["scatter"]
        return cls(symmetric_matrix(stored) if stored.ndim == 1 else stored, tensors["freedom"])

    def precision(self, background: TextBackground) -> npt.NDArray[np.float64]:
        """Invert the shared covariance S, ``[D, D]``."""
        size = len(self.scatter)
        generic = np.linalg.inv(background.precision[:size, :size].astype(np.float64))
        total = self.scatter + _BACKGROUND_CAPTIONS * generic
        covariance = total / (float(self.freedom) + _BACKGROUND_CAPTIONS)
        return np.asarray(np.linalg.inv(covariance), np.float64)


class CaptionEvidence:
    """Evidence from sentence vectors: how likely a text is given the captions of each task.

    Each task's captions are modeled by a normal distribution around their mean. All tasks share one covariance: that of
    captions within their tasks, accumulated over tasks, with the covariance of generic texts as its prior. The evidence
    for a task is the log-likelihood ratio against generic texts,

        G(q) = (μ − m)ᵀ S⁻¹ (q − (μ + m) / 2)

    with the task's mean caption μ, the mean m of generic texts and the shared covariance S (linear discriminant
    analysis). A library stores one matrix, and one mean per task. Unlike the evidence of words, this evidence
    understands paraphrases; the two together work better than either alone.

    Args:
        background: Distribution of generic texts.
        means: Mean caption of each task, ``[T, D]``.
        has_mean: Whether each task has captions, ``[T]``; the evidence for the others is 0.
        factor: Factor that scales the evidence.
    """

    def __init__(
        self,
        scatter: CaptionScatter,
        background: TextBackground,
        means: Floats,
        has_mean: npt.NDArray[np.bool_],
        factor: float,
    ) -> None:
        size = len(scatter.scatter)
        generic = background.mean[:size].astype(np.float64)
        centers = np.where(has_mean[:, None], means, generic)
        self._weights = factor * (centers - generic) @ scatter.precision(background)  # [T, D]
        self._biases = -np.vecdot(self._weights, centers + generic) / 2

    def __call__(self, texts: Floats, tasks: Indices) -> npt.NDArray[np.float64]:
        """Compute the evidence of n texts ``[n, ≥ D]`` for the m tasks at some indices, as log-odds ``[n, m]``."""
        vectors = texts[:, : self._weights.shape[1]].astype(np.float64)
        # Separate inner products run in this thread, and give the same result whatever the other texts are. Computing
        # them for all tasks and then selecting is cheaper than copying the selected weights.
        parts = np.split(self._weights, range(_CACHED_TASKS, len(self._weights), _CACHED_TASKS))
        evidence = np.concatenate([np.vecdot(vectors[:, None], part) for part in parts], axis=1)
        return np.asarray((evidence + self._biases)[:, tasks])
