"""Full-text search and its combination with vectors."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.queries.query_rivals import Bm25, combine


def test_bm25_scores_rare_words_and_short_texts_higher() -> None:
    bm25 = Bm25(["a red car", "a blue car on a long road", "", "red red rose"])
    scores = bm25("Red car!")
    assert scores[0] > scores[1] > -np.inf
    assert scores[2] == -np.inf, "a video without texts is not found"
    # idf = ln(1 + 3.5 / 1.5), tf part = 2.2 / (1 + 1.2 (0.25 + 0.75 · 3 / (13 / 3)))
    assert bm25("rose")[3] == pytest.approx(np.log(1 + 3.5 / 1.5) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 9 / 13)))
    assert (bm25("truck") == -np.inf).all()


def test_convex_combination_of_scaled_scores() -> None:
    nothing = -np.inf
    full_text, visual = np.array([nothing, 2.0, 4.0, 9.0]), np.array([0.9, 0.1, 0.5, nothing])
    assert combine(full_text, visual, 0.0) == pytest.approx([1, 0, 0.5, nothing])
    assert combine(full_text, visual, 0.25) == pytest.approx([0.75, 0.125, 0.625, nothing])
    assert combine(full_text, visual, 1.0) == pytest.approx([0, 0.5, 1, nothing])
    assert combine(np.full(2, nothing), np.zeros(2), 0.5) == pytest.approx([0, 0])
