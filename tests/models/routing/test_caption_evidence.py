"""Routing evidence of mean captions against a slow reference."""

from __future__ import annotations

import numpy as np

from models.backbones.backbone_description import TextBackground
from models.routing.router import CaptionEvidence, CaptionScatter, Floats

DIM = 4
SIZES = (6, 1, 9)  # captions per task


def _background() -> TextBackground:
    rng = np.random.default_rng(10)
    root = rng.normal(size=(DIM, DIM)) * 0.3
    precision = np.linalg.inv(root @ root.T + 0.05 * np.eye(DIM))
    mean = rng.normal(size=DIM) * 0.1
    return TextBackground(mean.astype(np.float32), ((precision + precision.T) / 2).astype(np.float32))


def _captions() -> list[Floats]:
    rng = np.random.default_rng(11)
    return [(rng.normal(size=(n, DIM)) + rng.normal(size=DIM)).astype(np.float32) for n in SIZES]


def _scatter() -> CaptionScatter:
    scatter = CaptionScatter.empty(DIM)
    for captions in _captions():
        scatter = scatter.add(captions)
    return scatter


def _reference(texts: Floats, means: list[Floats | None], factor: float) -> np.ndarray:
    """Compute log-likelihood ratios of normal distributions with a common covariance one by one."""
    background, captions = _background(), _captions()
    total = 200 * np.linalg.inv(background.precision.astype(np.float64))
    freedom = 200
    for group in captions:
        mean = group.astype(np.float64).mean(axis=0)
        for caption in group.astype(np.float64):
            total += np.outer(caption - mean, caption - mean)
        freedom += len(group) - 1
    precision = np.linalg.inv(total / freedom)
    generic = background.mean.astype(np.float64)

    def log_likelihood(text: np.ndarray, mean: np.ndarray) -> float:
        return float(-(text - mean) @ precision @ (text - mean) / 2)

    ratios = np.zeros((len(texts), len(means)))
    for row, text in zip(ratios, texts.astype(np.float64), strict=True):
        for task, mean in enumerate(means):
            if mean is not None:
                row[task] = factor * (log_likelihood(text, mean) - log_likelihood(text, generic))
    return ratios


def test_evidence_is_the_log_likelihood_ratio_to_generic_texts() -> None:
    means: list[Floats | None] = [group.mean(axis=0) for group in _captions()]
    means.insert(1, None)
    texts = np.random.default_rng(12).normal(size=(5, DIM + 3)).astype(np.float32)
    stored = np.stack([np.zeros(DIM, np.float32) if mean is None else mean for mean in means])
    has_mean = np.array([mean is not None for mean in means])
    evidence = CaptionEvidence(_scatter(), _background(), stored, has_mean, 0.5)
    expected = _reference(texts[:, :DIM], means, 0.5)
    np.testing.assert_allclose(evidence(texts, np.arange(4)), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evidence(texts, np.array([3, 0])), expected[:, [3, 0]], rtol=1e-4, atol=1e-5)


def test_precision_without_captions_is_that_of_the_background() -> None:
    precision = CaptionScatter.empty(DIM).precision(_background())
    np.testing.assert_allclose(precision, _background().precision, rtol=1e-4, atol=1e-4)


def test_scatter_is_that_within_tasks_and_independent_of_their_order() -> None:
    forward, backward = _scatter(), CaptionScatter.empty(DIM)
    for captions in reversed(_captions()):
        backward = backward.add(captions)
    np.testing.assert_allclose(forward.scatter, backward.scatter, rtol=1e-5)
    assert float(forward.freedom) == float(backward.freedom) == sum(SIZES) - len(SIZES)
    # A shift of all captions of a task does not change the scatter.
    shifted = CaptionScatter.empty(DIM)
    for number, captions in enumerate(_captions()):
        shifted = shifted.add(captions + 3 * number)
    np.testing.assert_allclose(shifted.scatter, forward.scatter, rtol=1e-4, atol=1e-4)
    loaded = CaptionScatter.from_tensors(forward.tensors())
    assert np.array_equal(loaded.precision(_background()), forward.precision(_background()))
