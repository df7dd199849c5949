"""The ridge rival: arithmetic by hand, and its galleries."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.clips.ridge_rival import DomainFeatures, fit_ridge, run_ridge


def test_ridge_of_one_feature() -> None:
    # Standardized features -1 and 1, centered targets -2 and 2: the weight is 4 / (2 + 2).
    ridge = fit_ridge(np.array([[0.0], [2.0]]), np.array([[0.0], [4.0]]), penalty=2)
    np.testing.assert_allclose(ridge.weights, [[1]], rtol=1e-5)
    np.testing.assert_allclose(ridge(np.array([[0.0], [1.0], [2.0], [5.0]])), [[1], [2], [3], [6]], rtol=1e-5)


def test_dual_and_primal_forms_agree() -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(5, 7)), rng.normal(size=(5, 3))
    dual = fit_ridge(features, targets, penalty=3)
    scaled = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-6)
    primal = np.linalg.solve(scaled.T @ scaled + 3 * np.eye(7), scaled.T @ (targets - targets.mean(axis=0)))
    np.testing.assert_allclose(dual.weights, primal)
    assert dual.size == 7 + 7 + 21 + 3


def test_identical_clips_have_finite_predictions() -> None:
    ridge = fit_ridge(np.ones((3, 2)), np.eye(3), penalty=1)
    np.testing.assert_allclose(ridge(np.full((1, 2), 5.0)), np.full((1, 3), 1 / 3))


@pytest.fixture
def domains() -> list[DomainFeatures]:
    """Two domains whose features name their captions; both share the word "clip"."""

    def domain(name: str, words: tuple[str, ...], offset: int) -> DomainFeatures:
        features = np.zeros((2 * len(words), 8))
        for row in range(len(features)):
            features[row, offset + row % len(words)] = 1
        captions = tuple((f"clip {word}",) for word in [*words, *words])
        return DomainFeatures(name, features, captions, np.arange(len(features)) >= len(words), seconds=1.0)

    return [domain("animals", ("cat", "dog", "cow"), 0), domain("cars", ("bus", "van", "cab"), 4)]


@pytest.mark.parametrize("joint", [False, True])
def test_separable_domains_are_found(domains: list[DomainFeatures], joint: bool) -> None:
    run = run_ridge(domains, joint=joint, prior=0.04, label="ridge")
    assert run.order == ("animals", "cars")
    for gallery in ("local", "global", "global_raw"):
        assert run.recall(gallery, 1) == 100, gallery
        assert run.query_recall(gallery, 1) == 100, gallery
    assert run.recall("local_all", 1) == 0, "each held-out clip ties with the training clip of its word"
    assert run.recall("local_all", 5) == 100
    assert run.routing() == (None if joint else 100)
    assert run.seconds["indexing"] == [1.0, 1.0]
    assert run.forgetting("local") is None


def test_clips_without_captions_are_neither_fitted_nor_queried() -> None:
    captions = (("cat",), ("dog",), (), ("cat",), ())
    features = np.array([[0.0], [1.0], [9.0], [0.0], [1.0]])
    domain = DomainFeatures("animals", features, captions, np.array([False, False, False, True, True]))
    assert domain.training.tolist() == [True, True, False, False, False]
    assert domain.queries == ["cat"]
    run = run_ridge([domain], joint=False, prior=0.04, label="ridge")
    assert run.ranks["local"] == {"animals": [1.0]}
    assert run.clips == {"animals": 5}
