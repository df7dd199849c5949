"""Lexicons against TF-IDF vectors computed by hand and a singular value decomposition of numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from trainer.methods.shared.lexicon import build_lexicon

Doubles = npt.NDArray[np.float64]

#: More tokens than videos.
WIDE = [[3, 9, 9, 12], [9, 40, 41], [3, 3, 3, 55, 60], [70, 71, 72, 9]]
#: More videos than tokens.
TALL = [[1, 2], [2], [3, 3], [1, 3], [2, 3, 3], [1], [1, 1, 1, 2], [3, 2]]


def _tfidf(documents: Sequence[Sequence[int]]) -> tuple[list[int], Doubles]:
    """Return the tokens and unit TF-IDF vectors, one entry after the other."""
    tokens = sorted({token for document in documents for token in document})
    vectors = np.zeros((len(documents), len(tokens)))
    for row, document in enumerate(documents):
        for column, token in enumerate(tokens):
            if token in document:
                containing = sum(token in other for other in documents)
                idf = 1 + math.log((1 + len(documents)) / (1 + containing))
                vectors[row, column] = (1 + math.log(list(document).count(token))) * idf
    return tokens, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_weights_and_vectors_by_hand() -> None:
    lexicon = build_lexicon([[5, 5, 9], [9]], dim=3, center=0.0)
    assert lexicon.tokens.tolist() == [5, 9]
    rare = 1 + math.log(3 / 2)
    assert lexicon.weights.tolist() == pytest.approx([rare, 1.0])
    assert lexicon.unknown_weight == pytest.approx(1 + math.log(3))
    twice = (1 + math.log(2)) * rare
    length = math.hypot(twice, 1)
    vectors = lexicon.targets.numpy() @ lexicon.vectors.numpy().T  # the basis spans the space
    np.testing.assert_allclose(vectors, [[twice / length, 1 / length], [0, 1]], atol=1e-12)
    assert not lexicon.targets[:, 2].any()


@pytest.mark.parametrize("documents", [WIDE, TALL], ids=["wide", "tall"])
@pytest.mark.parametrize("center", [0.0, 0.4, 1.0])
def test_compression_is_exact_if_the_rank_suffices(documents: list[list[int]], center: float) -> None:
    lexicon = build_lexicon(documents, dim=10, center=center)
    tokens, vectors = _tfidf(documents)
    assert lexicon.tokens.tolist() == tokens
    centered = vectors - center * vectors.mean(axis=0)
    np.testing.assert_allclose(lexicon.targets.numpy() @ lexicon.vectors.numpy().T, centered, atol=1e-9)
    query = np.random.default_rng(0).random(len(tokens))
    scores = lexicon.targets.numpy() @ (query @ lexicon.vectors.numpy())
    np.testing.assert_allclose(scores, centered @ query, atol=1e-9)


@pytest.mark.parametrize("documents", [WIDE, TALL], ids=["wide", "tall"])
def test_leading_directions_are_those_of_the_singular_value_decomposition(
    documents: list[list[int]],
) -> None:
    lexicon = build_lexicon(documents, dim=2, center=0.5)
    _, vectors = _tfidf(documents)
    centered = vectors - 0.5 * vectors.mean(axis=0)
    left, values, right = np.linalg.svd(centered)
    basis = lexicon.vectors.numpy()
    np.testing.assert_allclose(basis @ basis.T, right[:2].T @ right[:2], atol=1e-9)
    best = left[:, :2] * values[:2] @ right[:2]
    np.testing.assert_allclose(lexicon.targets.numpy() @ basis.T, best, atol=1e-9)


def test_identical_videos_keep_a_target_unless_fully_centered() -> None:
    kept = build_lexicon([[4, 5]] * 3, dim=4, center=0.4).targets
    assert kept.norm(dim=1).tolist() == pytest.approx([0.6] * 3)
    assert not build_lexicon([[4, 5]] * 3, dim=4, center=1.0).targets.any()


def test_captions_without_tokens_give_an_empty_lexicon() -> None:
    lexicon = build_lexicon([[], []], dim=4, center=0.5)
    assert len(lexicon.tokens) == 0
    assert lexicon.vectors.shape == (0, 4)
    assert torch.equal(lexicon.targets, torch.zeros(2, 4, dtype=torch.float64))


def test_rarest_tokens_of_a_large_vocabulary_are_dropped() -> None:
    documents = [list(range(2100)), [7000, 8000], [7000, 8000]]
    tokens = build_lexicon(documents, dim=2, center=0.5).tokens.tolist()
    assert tokens == [*range(2046), 7000, 8000]
