"""What the product and its rivals answer to queries, and how much of it is right."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.queries.library_videos import LibraryVideo
from benchmarks.queries.query_kinds import Query
from benchmarks.queries.query_rivals import combine
from benchmarks.queries.served_library import DEPTH, Answer

PRODUCT, FULL_TEXT, CONVEX, VISUAL, ZERO_SHOT, RIDGE, WORDY_RIDGE, CHANCE = ROWS = (
    "product as served",
    "BM25",
    "convex combination of BM25 and visual",
    "visual alone",
    "zero-shot",
    "joint ridge",
    "joint ridge, words as the product",
    "chance, uncaptioned first",
)

Floats = npt.NDArray[np.floating]


class Outcome(NamedTuple):
    """One query's values for one row, in percent.

    Attributes:
        row: Product or rival.
        gallery: ``all`` domains, or for a whole caption its ``own`` domain.
        values: Value by measure.
    """

    row: str
    gallery: str
    query: Query
    values: dict[str, float]


def compare_answers(
    queries: Sequence[Query],
    videos: Sequence[LibraryVideo],
    answers: Sequence[Answer],
    scores: Mapping[str, Floats],
    weights: Sequence[float],
) -> list[Outcome]:
    """Compute the outcomes of all rows.

    Args:
        answers: The product's answers: of all domains, then of the own domains of whole captions.
        scores: The rivals' scores for each of N videos and Q queries, ``[Q, N]``. BM25 and the visual scores are fused.
        weights: Weights of BM25 in the convex combination, for each half of the videos.
    """
    answered = iter(answers[len(queries) :])
    outcomes = []
    for number, query in enumerate(queries):
        found = {("all", PRODUCT): answers[number]}
        if query.is_caption:
            found["own", PRODUCT] = next(answered)
        for gallery in [gallery for gallery, _ in found]:
            inside = np.array([gallery == "all" or video.domain == query.domain for video in videos])
            listed = {row: np.where(inside, part[number], -np.inf) for row, part in scores.items()}
            if VISUAL in listed:
                listed[CONVEX] = combine(listed[FULL_TEXT], listed[VISUAL], weights[half_of(query)])
            for row, part in listed.items():
                found[gallery, row] = _rival_answer(part, videos, is_full_text=row == FULL_TEXT)
        outcomes += [
            Outcome(row, gallery, query, _values(query, answer)) for (gallery, row), answer in found.items()
        ]
    return outcomes


def fit_weights(
    queries: Sequence[Query],
    videos: Sequence[LibraryVideo],
    candidates: Sequence[float],
    score: Callable[[int, float], Floats],
) -> list[float]:
    """Fit a weight for each half of the videos on the other: the best mean of all recalls over the kinds.

    Args:
        candidates: Possible weights.
        score: Computes the scores of N videos for the query at a position with a weight, ``[N]``.
    """
    gains: dict[tuple[int, str], list[list[float]]] = {}
    for number, query in enumerate(queries):
        if query.right:
            answers = (_rival_answer(score(number, weight), videos) for weight in candidates)
            recalls = [statistics.fmean(_recalls(query, answer).values()) for answer in answers]
            gains.setdefault((1 - half_of(query), query.kind), []).append(recalls)
    kinds = [[np.mean(part, axis=0) for (half, _), part in gains.items() if half == own] for own in (0, 1)]
    return [candidates[int(np.mean(part, axis=0).argmax())] if part else candidates[0] for part in kinds]


def half_of(query: Query) -> int:
    """Choose the half of the videos that a query belongs to by its first right one."""
    return hashlib.sha256(min(query.right, default="").encode()).digest()[0] % 2


def _rival_answer(scores: Floats, videos: Sequence[LibraryVideo], *, is_full_text: bool = False) -> Answer:
    """Rank the first results by score, equal ones at random; full-text search finds nothing without a word."""
    order = np.lexsort((_random_order(len(videos)), -scores))[:DEPTH]
    top = [videos[row].id for row in order if scores[row] > -np.inf]
    best = float(scores[order[0]])
    return Answer(top, bool(top) if is_full_text else None, best if top else 0.0)


@lru_cache(maxsize=8)
def _random_order(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).permutation(count)


def _values(query: Query, answer: Answer) -> dict[str, float]:
    values = _recalls(query, answer)
    if answer.matches is not None:
        values["matches" if query.right else "refused"] = 100.0 * (answer.matches == bool(query.right))
    if answer.confidence is not None:
        values["confidence"] = answer.confidence
    return values


def _recalls(query: Query, answer: Answer) -> dict[str, float]:
    if query.right and query.needs_one:
        return {f"R@{k}": 100.0 * bool(query.right & set(answer.top[:k])) for k in (1, DEPTH)}
    places = min(DEPTH, query.stored)
    right = sum(video in query.right for video in answer.top[:places])
    return {"P@min(10, R)": 100.0 * right / places} if places else {}
