"""The score of a release against its parts, on captions as people retype them."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.evaluation.part_comparison import Candidates, find_candidates, retype, weight_without_loss

CAPTIONS = [f"a {animal} {verb} over the old {place}" for animal in ("dog", "fox", "owl") for verb in ("jumps", "flies")
            for place in ("bridge", "fence")]  # fmt: skip


def test_captions_are_retyped_in_turns() -> None:
    retyped = retype(CAPTIONS)
    library = {word for caption in CAPTIONS for word in caption.split()}
    for row, ((query, kept), caption) in enumerate(zip(retyped, CAPTIONS, strict=True)):
        words, typed = caption.split(), query.split()
        assert kept <= set(words)
        assert set(typed) <= library
        if row % 3 == 0:
            assert sum(word == other for word, other in zip(typed, words, strict=True)) >= 5
        elif row % 3 == 1:
            assert [word for word in words if word in typed] == typed
            assert len(typed) == 4
        else:
            assert query in caption
            assert len(typed) == 3
    assert retype(["a dog", ""]) == [("a dog", {"a", "dog"}), ("", frozenset())]


def test_rivals_are_the_best_videos_that_lack_a_word() -> None:
    captions = [[caption] for caption in CAPTIONS]
    captions[3] = []
    cosines = np.linspace(0, 1, len(captions))[None]
    (found,) = find_candidates([("owl jumps", frozenset({"owl", "jumps"}))], [8], cosines, captions)
    assert found[0][0] == pytest.approx(cosines[0, 8])
    rivals = dict(found[1:])
    right = {8, 9}
    by_cosine = [row for row in range(len(captions))[::-1] if row not in right][:5]
    assert {float(cosines[0, row]) for row in by_cosine} <= rivals.keys()
    assert not {float(cosines[0, row]) for row in right} & rivals.keys()
    assert found[0][1] > max(rivals.values()), "it has both words"
    assert rivals[float(cosines[0, 10])] > rivals[float(cosines[0, 7])], "has one word, and none"


def _searches(rng: np.random.Generator, cosine: float, words: float, count: int = 200) -> list[Candidates]:
    """Draw searches in which the right video leads by some standard deviations in each part."""
    return [
        ((cosine + rng.normal(), words + rng.normal()), *((rng.normal(), rng.normal()) for _ in range(8)))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("cosine", "words", "weight", "expected"),
    [
        (2.0, 2.0, 1.0, lambda w: w == 1.0),  # the sum is better than both
        (0.0, 2.0, 4.0, lambda w: w <= 1.0),  # cosines that say nothing
        (2.0, 0.0, 0.25, lambda w: w >= 1.0),  # words that say nothing
        (2.0, -2.0, 0.25, lambda w: w > 4.0),  # nothing is as good as the cosines alone
    ],
)
def test_weight_loses_to_neither_part(cosine: float, words: float, weight: float, expected: object) -> None:
    searches = _searches(np.random.default_rng(0), cosine, words)
    served = weight_without_loss(weight, searches)
    assert callable(expected)
    assert expected(served)

    def first(with_cosine: float, with_words: float) -> np.ndarray:
        scores = np.array(searches) @ (with_cosine, with_words)
        return np.asarray(scores.argmax(axis=1) == 0)

    for part in (first(1.0, 0.0), first(0.0, 1.0)):
        assert first(served, 1.0).sum() >= part.sum() - 20


def test_few_searches_keep_the_fitted_weight() -> None:
    lost: Candidates = ((0.0, 5.0), (1.0, 0.0))  # found by its words, and lost with a weight above 5
    assert weight_without_loss(10.0, [lost] * 4) == 10.0
    assert weight_without_loss(10.0, [lost] * 5) == 2.5
    assert weight_without_loss(10.0, []) == 10.0
