"""Text-conditioned pooling, compared with its equation in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from index.scanning.frame_pooling import pooled_cosines


def _units(*shape: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.01, 0.1, 2.0])
def test_score_is_cosine_with_the_attention_weighted_sum(temperature: float) -> None:
    query, frames = _units(6), _units(5, 4, 6, seed=1)
    for score, shots in zip(pooled_cosines(query, frames, temperature), frames.tolist(), strict=True):
        attention = [
            math.exp(math.fsum(map(lambda a, b: a * b, query, shot)) / temperature) for shot in shots
        ]
        pooled = [
            sum(a * shot[i] for a, shot in zip(attention, shots, strict=True)) / sum(attention)
            for i in range(6)
        ]
        product = sum(a * b for a, b in zip(query.tolist(), pooled, strict=True))
        assert score == pytest.approx(product / math.hypot(*pooled), abs=1e-6)


def test_temperature_ranges_from_the_nearest_frame_to_the_mean() -> None:
    query, frames = _units(6), _units(5, 4, 6, seed=2)
    np.testing.assert_allclose(pooled_cosines(query, frames, 1e-4), (frames @ query).max(axis=1), atol=1e-5)
    mean = frames.mean(axis=1)
    cosines = mean @ query / np.linalg.norm(mean, axis=1)
    np.testing.assert_allclose(pooled_cosines(query, frames, 1e4), cosines, atol=1e-4)


def test_score_does_not_depend_on_other_videos() -> None:
    query, frames = _units(96), _units(101, 8, 96, seed=3)
    scores = pooled_cosines(query, frames)
    alone = [pooled_cosines(query, frames[n : n + 1])[0] for n in range(len(frames))]
    assert scores.tolist() == alone
    assert scores.dtype == np.float32


def test_frames_that_cancel_out_score_zero() -> None:
    frames = np.array([[[0, 1], [0, -1]]], np.float32)
    assert pooled_cosines(np.array([1, 0], np.float32), frames).tolist() == [0]
