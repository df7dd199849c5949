"""Evidence of a text for the tasks of a search, summarized in a few numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.routing.router import Router, distinct_tokens, fill_silent, log_probabilities

Floats = npt.NDArray[np.floating]


class TextEvidence(NamedTuple):
    """How well the searched tasks know a text.

    Attributes:
        familiarity: Routing evidence per token for the likeliest task, in nats.
        log_weight: Highest log weight of a task; at most 0.
        words: Highest evidence of the words for a task, per token, in nats.
        captions: Highest evidence in addition to that of the words, in nats; 0 if the encoder has none.
        coverage: Highest share of the text's distinct tokens that the captions of one task contain, 0..1.
    """

    familiarity: float
    log_weight: float
    words: float = 0.0
    captions: float = 0.0
    coverage: float = 0.0


def route_text(
    router: Router,
    tokens: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    further: npt.NDArray[np.float32] | None,
) -> tuple[npt.NDArray[np.float32], TextEvidence]:
    """Log weights ``[T]`` of T tasks for a text, and a summary of the evidence.

    Args:
        router: Router of the release.
        tokens: Token ids ``[L]``, including the start and end tokens.
        positions: Positions of the tasks in the router, ``[T]``.
        further: Evidence in addition to that of the words, in nats, ``[T]``; None without.
    """
    distinct = distinct_tokens(tokens)
    words = router.word_evidence(distinct, positions)
    summary = summarize_evidence(
        words, further, router.coverage(distinct, positions), router.silent(positions), len(distinct)
    )
    return log_probabilities(router.evidence(words, positions, further)), summary


def summarize_evidence(
    words: Floats, further: Floats | None, coverage: Floats, silent: npt.NDArray[np.bool_], tokens: int
) -> TextEvidence:
    """Summary of the evidence of a text for T ≥ 1 tasks.

    Args:
        words: Evidence of the words, in nats, ``[T]``.
        further: Evidence in addition to that of the words, in nats, ``[T]``; None without.
        coverage: Share of the text's distinct tokens that the captions of each task contain, ``[T]``.
        silent: Whether each task is silent (has no captions), ``[T]``; silent tasks have no evidence of their own.
        tokens: Number of distinct tokens of the text.
    """
    total = np.array(words if further is None else words + further, np.float64)
    fill_silent(total[None], silent)
    if silent.all() or not tokens:
        return TextEvidence(
            float(total.max()) / tokens if tokens else 0.0, float(log_probabilities(total).max())
        )
    return TextEvidence(
        familiarity=float(total.max()) / tokens,
        log_weight=float(log_probabilities(total).max()),
        words=float(words[~silent].max()) / tokens,
        captions=0.0 if further is None else float(further[~silent].max()),
        coverage=float(coverage[~silent].max()),
    )
