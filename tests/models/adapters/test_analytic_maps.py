"""The analytic method's maps against the formula for the score."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from models.adapters.analytic_maps import (
    AnalyticMapSet,
    AnalyticQueryMap,
    AnalyticVideoMap,
    Floats,
    VectorLayout,
    normalize_rows,
)

LAYOUT = VectorLayout(semantic=3, lexical=2, semantic_weight=0.6)


@pytest.fixture(scope="module")
def draw() -> Callable[..., Floats]:
    """``draw(*size)``: normally distributed numbers."""
    rng = np.random.default_rng(0)
    return lambda *size: rng.standard_normal(size, np.float32)


def _query_map(center: Floats | None = None) -> AnalyticQueryMap:
    """Build a map with two known tokens, each with a lexical coordinate of its own."""
    return AnalyticQueryMap(
        center=np.zeros(3, np.float32) if center is None else center,
        caption_mean=np.zeros(3, np.float32),
        tokens=np.array([3, 8]),
        token_weights=np.array([1, 2], np.float32),
        unknown_token_weight=np.array(3, np.float32),
        lexicon=np.eye(2, dtype=np.float32),
    )


def _encode(query_map: AnalyticQueryMap, frozen: Floats, tokens: npt.NDArray[np.int64]) -> Floats:
    """Compute query vectors ``[n, dim]`` with a set that contains only this map."""
    rows = np.arange(len(frozen))
    return AnalyticMapSet(LAYOUT, [query_map])(frozen, [*tokens], rows, 0 * rows)


# -- layout ----------------------------------------------------------------------------------------------


def test_layout_has_128_coordinates_besides_the_semantic_ones() -> None:
    assert (VectorLayout(384, 0.6).dim, VectorLayout(768, 0.6).dim, LAYOUT.dim) == (512, 896, 7)


def test_vectors_of_version_1_0_0_without_a_lexical_part_are_semantic(draw: Callable[..., Floats]) -> None:
    layout = VectorLayout(16, 0.6, lexical=0)
    assert layout.dim == 16
    semantic = draw(4, 16)
    for is_video in (False, True):
        joined = layout.join(semantic, np.zeros((4, 0), np.float32), is_video=is_video)
        np.testing.assert_allclose(joined, normalize_rows(semantic))


def test_cosine_of_joined_vectors_is_the_weighted_sum_of_both_parts(draw: Callable[..., Floats]) -> None:
    queries, videos = normalize_rows(draw(5, 3)), normalize_rows(draw(6, 3))
    words = normalize_rows(draw(5, 2)) * np.linspace(0, 1, 5, dtype=np.float32)[:, None]
    described = normalize_rows(draw(6, 2)) * np.linspace(1, 0.2, 6, dtype=np.float32)[:, None]
    q = LAYOUT.join(queries, words, is_video=False)
    v = LAYOUT.join(videos, described, is_video=True)
    for vectors in (q, v):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    expected = 0.6 * queries @ videos.T + 0.4 * words @ described.T
    np.testing.assert_allclose(q @ v.T, expected, atol=1e-6)


# -- queries ---------------------------------------------------------------------------------------------


def test_query_score_by_hand() -> None:
    center = np.array([0, 0.5, 0], np.float32)
    frozen = np.array([[0.6, 0.5, 0.8, 9]], np.float32)  # coordinates after the semantic part are ignored
    tokens = np.array([[3, 8, 50]])  # 50 is unknown
    query = _encode(_query_map(center), frozen, tokens)
    assert np.linalg.norm(query) == pytest.approx(1)

    semantic, lexical = np.array([[0, 0.6, 0.8]], np.float32), np.array([[0.8, -0.6]], np.float32)
    video = LAYOUT.join(semantic, lexical, is_video=True)
    known_share = math.sqrt(1 + 4) / math.sqrt(1 + 4 + 9)
    lexical_cosine = (1 * 0.8 + 2 * -0.6) / math.sqrt(5)
    expected = 0.6 * (0.8 * 0.8) + 0.4 * known_share * lexical_cosine
    assert (query @ video.T).item() == pytest.approx(expected)


def test_neutral_map_keeps_the_frozen_direction_and_knows_no_words(draw: Callable[..., Floats]) -> None:
    frozen = normalize_rows(draw(4, 3))
    neutral = AnalyticQueryMap.neutral(LAYOUT)
    assert len(neutral.caption_mean) == 0
    query = _encode(neutral, frozen, np.array([[3, 8]] * 4))
    np.testing.assert_allclose(query[:, :3], math.sqrt(0.6) * frozen, rtol=1e-5)
    assert not query[:, 3:6].any()
    np.testing.assert_allclose(query[:, 6], math.sqrt(0.4), rtol=1e-6)


# -- videos ----------------------------------------------------------------------------------------------


def test_video_vectors_follow_the_formula(draw: Callable[..., Floats]) -> None:
    layout = VectorLayout(semantic=10, lexical=4, semantic_weight=0.6)
    features, projected, weight, offset = draw(5, 32), normalize_rows(draw(5, 16)), draw(32, 14), draw(14)
    vectors = AnalyticVideoMap(weight, offset, np.array(0.3, np.float32))(features, projected, layout)
    assert np.linalg.norm(vectors, axis=1).tolist() == pytest.approx([1] * 5)
    for vector, x, projection in zip(vectors, features, projected, strict=True):
        semantic = x @ weight[:, :10] + offset[:10] + 0.3 * projection[:10]
        lexical = x @ weight[:, 10:] + offset[10:]
        for actual, part, share in ((vector[:10], semantic, 0.6), (vector[10:14], lexical, 0.4)):
            np.testing.assert_allclose(actual, math.sqrt(share) * part / np.linalg.norm(part), rtol=1e-4)
        assert np.abs(vector[14:]).max() < 1e-3


def test_video_without_lexical_prediction_is_completed_to_unit_length(draw: Callable[..., Floats]) -> None:
    layout = VectorLayout(semantic=10, lexical=4, semantic_weight=0.6)
    projected = np.zeros((2, 16), np.float32)
    projected[:, :10] = normalize_rows(draw(2, 10))
    nothing = np.zeros((32, 14), np.float32), np.zeros(14, np.float32)
    vectors = AnalyticVideoMap(*nothing, np.ones((), np.float32))(draw(2, 32), projected, layout)
    np.testing.assert_allclose(vectors[:, :10], math.sqrt(0.6) * projected[:, :10], rtol=1e-5)
    assert not vectors[:, 10:14].any()
    np.testing.assert_allclose(vectors[:, 14], math.sqrt(0.4), rtol=1e-5)


# -- storage ---------------------------------------------------------------------------------------------


def test_maps_survive_storage_and_refuse_a_missing_tensor(draw: Callable[..., Floats]) -> None:
    query_map = _query_map(draw(3))
    tensors = query_map.tensors()
    loaded = AnalyticQueryMap.from_tensors(tensors)
    assert all(np.array_equal(loaded.tensors()[name], tensor) for name, tensor in tensors.items())
    del tensors["center"]
    with pytest.raises(KeyError, match="center"):
        AnalyticQueryMap.from_tensors(tensors)
