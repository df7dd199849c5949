"""TF-IDF vectors against values computed by hand."""

from __future__ import annotations

import math

import numpy as np

from benchmarks.clips.caption_tfidf import CaptionTfidf, caption_words


def test_words_are_runs_of_letters_and_digits_in_lower_case() -> None:
    assert caption_words("A 3/4 sit-up, twice") == ["a", "3", "4", "sit", "up", "twice"]
    assert caption_words("烤蛋挞 x2") == ["烤", "蛋", "挞", "x2"]


def test_weights_follow_the_definition() -> None:
    tfidf = CaptionTfidf(["run fast", "run slow slow"])
    assert tfidf.words == ["fast", "run", "slow"]
    rare = math.log(3 / 2) + 1  # in one of two documents
    np.testing.assert_allclose(tfidf.idf, [rare, 1, rare])
    slow = (1 + math.log(2)) * rare
    np.testing.assert_allclose(
        tfidf.transform(["run fast", "run slow slow"]),
        [
            [rare / math.hypot(rare, 1), 1 / math.hypot(rare, 1), 0],
            [0, 1 / math.hypot(slow, 1), slow / math.hypot(slow, 1)],
        ],
    )


def test_unknown_words_are_ignored() -> None:
    tfidf = CaptionTfidf(["run fast", "run slow"])
    np.testing.assert_array_equal(tfidf.transform(["jump", ""]), np.zeros((2, 3)))
    np.testing.assert_allclose(tfidf.transform(["run and jump"]), [[0, 1, 0]])
