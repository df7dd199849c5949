"""Ridge regressions and lexicons against textbook solutions and values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from trainer.methods.shared.closed_form import RegressionSums, build_lexicon, choose_penalty, fit_ridge

Doubles = npt.NDArray[np.float64]


def _videos(seed: int, videos: int, features: int = 7, targets: int = 3) -> tuple[Tensor, Tensor]:
    """Return the features of different scales and offsets, and targets."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(videos, features)) * np.linspace(0.1, 4, features) + np.linspace(-2, 5, features)
    return torch.tensor(x), torch.tensor(rng.normal(size=(videos, targets)) + 0.5)


def _textbook_ridge(features: Tensor, targets: Tensor, penalty: float) -> tuple[Doubles, Doubles]:
    """Return the ridge regression on standardized features with an offset that is not penalized."""
    x, y = features.numpy(), targets.numpy()
    std = x.std(axis=0) + 0.02 * math.sqrt((x**2).mean())
    z = (x - x.mean(axis=0)) / std
    weights = np.linalg.inv(z.T @ z + penalty * np.eye(x.shape[1])) @ z.T @ (y - y.mean(axis=0))
    return weights / std[:, None], y.mean(axis=0) - (x.mean(axis=0) / std) @ weights


def _assert_equal(actual: tuple[Tensor, Tensor], expected: tuple[Doubles | Tensor, Doubles | Tensor]) -> None:
    for left, right in zip(actual, expected, strict=True):
        np.testing.assert_allclose(left.numpy(), np.asarray(right), rtol=1e-7, atol=1e-10)


def _solutions(features: Tensor, targets: Tensor, penalty: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """Return the regression from the videos, and that from their sums."""
    sums = RegressionSums.empty(7, 3).add(features, targets)
    return [fit_ridge(features, targets, penalty), sums.solve(penalty)]


@pytest.mark.parametrize("penalty", [1e-3, 1.0, 1000.0])
@pytest.mark.parametrize("videos", [3, 7, 40])
def test_solution_is_the_textbook_ridge(videos: int, penalty: float) -> None:
    features, targets = _videos(0, videos)
    for solution in _solutions(features, targets, penalty):
        _assert_equal(solution, _textbook_ridge(features, targets, penalty))


def test_sums_over_two_tasks_equal_sums_over_their_union() -> None:
    (x1, y1), (x2, y2) = _videos(1, 12), _videos(2, 30)
    one_by_one = RegressionSums.empty(7, 3).add(x1, y1).add(x2, y2)
    union = torch.cat([x1, x2]), torch.cat([y1, y2])
    assert float(one_by_one.count) == 42
    _assert_equal(one_by_one.solve(10.0), _textbook_ridge(*union, 10.0))
    alone = RegressionSums.empty(7, 3).add(x2, y2)
    before = alone.solve(10.0)
    assert not torch.allclose(one_by_one.solve(10.0)[0], before[0], rtol=0.01)
    alone.add(x1, y1)
    _assert_equal(alone.solve(10.0), before)  # sums are not changed in place


def test_sums_survive_storage() -> None:
    sums = RegressionSums.empty(7, 3).add(*_videos(3, 25))
    stored = sums.tensors()
    assert {name: tensor.dtype for name, tensor in stored.items()} == dict.fromkeys(stored, torch.float32)
    assert stored["products"].shape == (7 * 8 // 2,)  # one triangle
    loaded = RegressionSums.from_tensors(stored)
    torch.testing.assert_close(loaded.products, sums.products, rtol=1e-6, atol=0)
    assert torch.equal(loaded.products, loaded.products.T)
    for left, right in zip(loaded.solve(1.0), sums.solve(1.0), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    again = RegressionSums.from_tensors(loaded.tensors())
    assert all(map(torch.equal, again.solve(1.0), loaded.solve(1.0)))


def test_no_videos_give_zero_weights() -> None:
    weight, offset = RegressionSums.empty(7, 3).solve(1.0)
    assert (weight.shape, offset.shape) == ((7, 3), (3,))
    assert not weight.any()
    assert not offset.any()


def test_single_video_predicts_its_own_target() -> None:
    features, targets = _videos(4, 1)
    for weight, offset in _solutions(features, targets):
        torch.testing.assert_close(features @ weight + offset, targets)
        assert weight.abs().max() < 1e-6


def test_constant_features_get_no_weight() -> None:
    features, targets = _videos(5, 20)
    features[:, 2] = 3.0
    for weight, offset in _solutions(features, targets):
        assert weight.isfinite().all()
        assert offset.isfinite().all()
        assert weight[2].abs().max() < 1e-6


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
def test_leading_directions_are_those_of_the_singular_value_decomposition(documents: list[list[int]]) -> None:
    lexicon = build_lexicon(documents, dim=2, center=0.5)
    _, vectors = _tfidf(documents)
    centered = vectors - 0.5 * vectors.mean(axis=0)
    left, values, right = np.linalg.svd(centered)
    basis = lexicon.vectors.numpy()
    np.testing.assert_allclose(basis @ basis.T, right[:2].T @ right[:2], atol=1e-9)
    best = left[:, :2] * values[:2] @ right[:2]
    np.testing.assert_allclose(lexicon.targets.numpy() @ basis.T, best, atol=1e-9)


def test_identical_videos_keep_a_target_unless_fully_centered() -> None:
    targets = build_lexicon([[4, 5]] * 3, dim=4, center=0.4).targets
    assert targets.norm(dim=1).tolist() == pytest.approx([0.6] * 3)
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


def test_penalty_is_chosen_by_the_cosines_of_left_out_videos() -> None:
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(60, 30, generator=rng)
    weights = torch.randn(30, 4, generator=rng).double()
    signal, noise = features.double() @ weights, 20 * torch.randn(60, 4, generator=rng).double()
    empty = RegressionSums.empty(30, 4)
    for fit in (fit_ridge, empty.fit):
        exact = choose_penalty(features, signal, fit, 10.0)
        noisy = choose_penalty(features, noise, fit, 10.0)
        assert exact == pytest.approx(1.0)
        assert noisy > exact
    assert choose_penalty(features[:10], noise[:10], fit_ridge, 10.0) == 10.0
