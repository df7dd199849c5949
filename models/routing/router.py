"""Which tasks a query sounds like: the words of a task's captions, weighed as a naive Bayes classifier weighs them.

A domain brings its own words, and those tell it apart long before an encoder has learned what they mean. Each task
keeps a *profile*, one number per token of the vocabulary; the score of a text is the sum over its tokens. It costs
no training, no second model, and one row of numbers per task.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.routing.token_profiles import Profiles

__all__ = [
    "COSINE_LIMIT",
    "PRIOR",
    "Router",
    "fill_silent",
    "log_weights",
    "silent_tasks",
    "token_presence",
    "token_profile",
    "within_reach",
    "words_of",
]

Floats = npt.NDArray[np.float32]

# Cosine per nat of evidence. It lets words decide between shards whose cosines, made by differently conditioned
# encoders, are not comparable as they stand; chosen on another seed of the video world than the one reported on.
PRIOR = 0.04

# No cosine is above 1. That of vectors which half precision once kept may be computed as a little more: bfloat16 can
# make each longer by a share of 2⁻⁹.
COSINE_LIMIT = 1.01


def within_reach(
    lifts: npt.NDArray[np.floating], bar: npt.NDArray[np.floating] | float, limit: float = COSINE_LIMIT
) -> npt.NDArray[np.bool_]:
    """Which tasks can still matter to a text: those under which some video could score as much as ``bar``.

    A video's score in the union of all shards is the cosine of the text's vector for its shard, plus what routing adds
    for the task. The second is known before the text is encoded for that shard, and the first has a limit. Where both
    together stay below the bar, the text need not be encoded for the task at all, and nothing is lost by it: this is a
    bound, not a guess. With a bar that rises from shard to shard, as the k-th best score does, the likely come first.

    Args:
        lifts: prior × log weight of every text and task, of any shape.
        bar: the lowest score that makes a difference, of a shape that goes with it; −∞ where any does.
        limit: of the cosines. With a lower one, which is likely but not certain, it is a guess after all.
    """
    return np.asarray(lifts + limit >= bar)


def token_presence(ids: Tensor, end: Tensor, vocabulary: int) -> Tensor:
    """Which tokens a text holds, ``[n, V]`` of zeros and ones.

    Args:
        ids: ``[n, L]``, from a mark of the start on.
        end: position of the end of each text, ``[n]``; what follows is padding.
        vocabulary: V.
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    inside = (place > 0) & (place < end.unsqueeze(1))  # between the marks of start and end
    presence = torch.zeros(len(ids), vocabulary, device=ids.device)
    presence.scatter_reduce_(1, ids, inside.to(presence.dtype), "amax")
    return presence


def words_of(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ids of the tokens that a text holds, each once, ascending: the ones of :func:`token_presence`.

    Args:
        tokens: ``[L]``, from the mark of the start to that of the end.
    """
    return np.unique(tokens[1:-1])


def token_profile(counts: Tensor) -> Tensor:
    """A task's profile ``[V]``: log(1 + V·p), p being the share of each token among those of its captions.

    A token that the task never used adds nothing, whatever the size of the task; one that it uses as often as chance
    would adds log 2. All zero for a task without captions.
    """
    total = counts.sum()
    return torch.log1p(len(counts) * counts / total) if total > 0 else torch.zeros_like(counts)


def log_weights(presence: Floats, profiles: Floats) -> Floats:
    """Log of how much each text sounds like each task, ``[n, T]``; the weights of a text sum to one.

    A task without captions has no words to be judged by, so it counts as the likeliest of the others.

    Args:
        presence: ``[n, V]`` from :func:`token_presence`.
        profiles: ``[T, V]`` from :func:`token_profile`.
    """
    return _normalised(presence @ profiles.T, silent_tasks(profiles))


class Router:
    """The profiles of all tasks, laid out for one query at a time: its cost grows with the query, not with V.

    Args:
        profiles: from :func:`token_profile`.
    """

    def __init__(self, profiles: Profiles) -> None:
        order = np.argsort(profiles.tokens, kind="stable")
        self._tasks, self._values = profiles.rows[order], profiles.values[order]
        self._ends = np.cumsum(np.bincount(profiles.tokens, minlength=profiles.vocabulary))
        self._silent = profiles.silent

    def log_weights(self, tokens: npt.NDArray[np.int64], tasks: npt.NDArray[np.int64]) -> Floats:
        """As :func:`log_weights` for one text and some tasks, ``[len(tasks)]``.

        Args:
            tokens: ids of the tokens that the text holds, each once.
            tasks: positions of the tasks.
        """
        return np.asarray(_normalised(self._sums(tokens, tasks), self._silent[tasks])[0], np.float32)

    def evidence(self, tokens: npt.NDArray[np.int64], tasks: npt.NDArray[np.int64]) -> Floats:
        """Nats that a text gives for some tasks, ``[len(tasks)]``: log weights before they are made to sum to one."""
        scores = self._sums(tokens, tasks)
        fill_silent(scores, self._silent[tasks])
        return np.asarray(scores[0], np.float32)

    def _sums(self, tokens: npt.NDArray[np.int64], tasks: npt.NDArray[np.int64]) -> Floats:
        spans = [slice(self._ends[token - 1] if token else 0, self._ends[token]) for token in tokens]
        found = np.concatenate([np.arange(span.start, span.stop) for span in spans] or [tokens[:0]])
        sums = np.bincount(self._tasks[found], self._values[found], len(self._silent))
        return np.asarray(sums[None, tasks], np.float32)


def silent_tasks(profiles: Floats) -> npt.NDArray[np.bool_]:
    """Which tasks have no captions, ``[T]``."""
    return np.asarray(~profiles.any(axis=1), np.bool_).reshape(-1)


def fill_silent(scores: npt.NDArray[np.floating], silent: npt.NDArray[np.bool_]) -> None:
    """Give tasks without captions, in place, the score of the likeliest of the others.

    Args:
        scores: ``[n, T]``, of texts and tasks.
        silent: ``[T]``, which tasks have no captions.
    """
    if silent.any() and not silent.all():
        scores[:, silent] = scores[:, ~silent].max(axis=1, keepdims=True)


def _normalised(scores: Floats, silent: npt.NDArray[np.bool_]) -> Floats:
    fill_silent(scores, silent)
    scores -= scores.max(axis=1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)), np.float32)
