"""mAP of labeled pairs against a slow computation (ctp, equation 11)."""

from __future__ import annotations

import numpy as np
import pytest

import benchmarks.learning.labeled_pairs
from benchmarks.learning.labeled_pairs import LabeledVectors, pair_precisions


def _random_pairs(rng: np.random.Generator, count: int, start: int, labels: int) -> LabeledVectors:
    vectors = rng.normal(size=(count, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [f"p{number}" for number in range(start, start + count)]
    return LabeledVectors(vectors, names, [f"c{label}" for label in rng.integers(labels, size=count)])


def _equation_11(queries: LabeledVectors, gallery: LabeledVectors, depth: int) -> float:
    """Return the mean over the queries, written as the equation: a sum over ranks with indicators."""
    values = []
    for vector, name, label in zip(queries.vectors, queries.ids, queries.labels, strict=True):
        others = [n for n in range(len(gallery.ids)) if gallery.ids[n] != name]
        if all(gallery.labels[n] != label for n in others):
            continue
        ranking = sorted(others, key=lambda n: -float(vector @ gallery.vectors[n]))[:depth]
        total, returned = 0.0, 0  # returned: R_q(k), correct predictions before rank k
        for rank, n in enumerate(ranking, 1):
            if gallery.labels[n] == label:
                total += (returned + 1) / rank
                returned += 1
        values.append(total / returned if returned else 0.0)
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", range(4))
def test_precisions_equal_equation_11(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    gallery = _random_pairs(rng, 37, 0, labels=9)
    queries = _random_pairs(rng, 23, 30, labels=11)  # seven IDs and most labels occur in the gallery
    expected = {depth: _equation_11(queries, gallery, depth) for depth in (1, 5, 10)}
    assert pair_precisions(queries, gallery) == pytest.approx(expected, abs=1e-9)
    monkeypatch.setattr(benchmarks.learning.labeled_pairs, "_SCORES", 100)  # two queries at a time
    assert pair_precisions(queries, gallery) == pytest.approx(expected, abs=1e-9)


def test_pair_does_not_find_itself() -> None:
    vectors = np.eye(3, dtype=np.float32)
    pairs = LabeledVectors(vectors, ["a", "b", "c"], ["x", "x", "y"])
    result = pair_precisions(pairs, pairs, depths=(1, 2))
    # "c" has no other pair of its label; "a" and "b" tie with "c" in front of each other.
    assert result == {1: 0.0, 2: 0.5}


def test_gallery_smaller_than_the_depth() -> None:
    queries = LabeledVectors(np.ones((1, 1), np.float32), ["q"], ["x"])
    gallery = LabeledVectors(np.array([[0.5], [0.9]], np.float32), ["a", "b"], ["x", "y"])
    assert pair_precisions(queries, gallery) == {1: 0.0, 5: 0.5, 10: 0.5}


def test_without_a_relevant_pair_there_is_no_precision() -> None:
    queries = LabeledVectors(np.ones((1, 1), np.float32), ["q"], ["x"])
    gallery = LabeledVectors(np.ones((2, 1), np.float32), ["a", "b"], ["y", "z"])
    assert pair_precisions(queries, gallery) is None
    nothing = LabeledVectors(np.empty((0, 1), np.float32), [], [])
    assert pair_precisions(nothing, gallery) is None
    assert pair_precisions(queries, nothing) is None
