"""How much of the answers is right, and weights that are fitted on one half of the videos for the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.queries.library_videos import LibraryVideo
from benchmarks.queries.query_kinds import Query
from benchmarks.queries.query_rivals import (
    CONVEX,
    FULL_TEXT,
    PRODUCT,
    VISUAL,
    combine,
    compare_answers,
    fit_weights,
    half_of,
)
from benchmarks.queries.served_library import Answer

VIDEOS = [
    LibraryVideo(f"v{number:02d}", "gym", "", Path("x"), "x", ("text",), {}, ("text",))
    for number in range(40)
]
QUERIES = [Query("exact", video.id, frozenset([video.id]), 1, "gym") for video in VIDEOS]
HALVES = np.array([half_of(query) for query in QUERIES])


def test_a_weight_is_fitted_on_the_other_half_of_the_videos() -> None:
    assert 10 < HALVES.sum() < 30
    right = np.eye(len(VIDEOS)) * 9
    wrong = np.roll(right, 1, axis=1)
    # BM25 finds the videos of the first half only, looks those of the second half only.
    full_text, visual = (np.where((half == HALVES)[:, None], right, wrong) for half in (0, 1))
    candidates = [0.2, 0.8]
    weights = fit_weights(
        QUERIES, VIDEOS, candidates, lambda number, weight: combine(full_text[number], visual[number], weight)
    )
    assert weights == [0.2, 0.8]
    answers = [Answer([query.text]) for query in QUERIES]
    outcomes = compare_answers(QUERIES, VIDEOS, answers, {FULL_TEXT: full_text, VISUAL: visual}, weights)
    found = {
        row: [outcome.values["R@1"] for outcome in outcomes if outcome.row == row]
        for row in (PRODUCT, FULL_TEXT, VISUAL, CONVEX)
    }
    assert found[PRODUCT] == [100.0] * len(QUERIES)
    assert found[CONVEX] == [0.0] * len(QUERIES), "its weights are right for the half that it was fitted on"
    assert found[FULL_TEXT] == pytest.approx(100.0 * (HALVES == 0))
    assert found[VISUAL] == pytest.approx(100.0 * (HALVES == 1))


def test_other_domains_are_not_in_the_own_gallery() -> None:
    videos = [VIDEOS[0], LibraryVideo("z", "zoo", "", Path("z"), "z", ("text",), {}, ("text",))]
    query = Query("learned", "text", frozenset({"v00"}), 1, "gym")
    scores = {FULL_TEXT: np.array([[1.0, 2.0]]), VISUAL: np.array([[0.1, 0.2]])}
    answers = [Answer(["z"], True, 0.7), Answer(["v00"], False, 0.6)]
    outcomes = compare_answers([query], videos, answers, scores, [0.5, 0.5])
    first = {(o.row, o.gallery): o.values["R@1"] for o in outcomes}
    for row in (PRODUCT, FULL_TEXT, VISUAL, CONVEX):
        assert (first[row, "all"], first[row, "own"]) == (0, 100)
    product = {o.gallery: o.values for o in outcomes if o.row == PRODUCT}
    assert (product["all"]["matches"], product["own"]["matches"]) == (100, 0)
    assert product["all"]["confidence"] == 0.7
