"""Maps of the analytic method against the formula for the score, and sets of maps: the same bits in any batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
from tests.models.adapters.query_map_reference import reference_vectors

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


WIDE_LAYOUT = VectorLayout(semantic=20, lexical=10, semantic_weight=0.6)
VOCABULARY = 50

Texts = tuple[Floats, npt.NDArray[np.int64]]


def _map(
    seed: int, dtype: npt.DTypeLike = np.float16, layout: VectorLayout = WIDE_LAYOUT
) -> AnalyticQueryMap:
    rng = np.random.default_rng(seed)
    tokens = np.sort(rng.permutation(VOCABULARY)[: 5 + seed % 7])
    return AnalyticQueryMap(
        center=rng.standard_normal(layout.semantic, np.float32) / 10,
        caption_mean=rng.standard_normal(layout.semantic if seed % 3 else 0, np.float32),
        tokens=tokens,
        token_weights=rng.random(len(tokens), np.float32) + np.float32(0.5),
        unknown_token_weight=np.array(2, np.float32),
        lexicon=(rng.standard_normal((len(tokens), layout.lexical)) / 4).astype(dtype),
    )


@pytest.fixture
def texts() -> Texts:
    """Frozen vectors and distinct tokens of six texts; the last has no token."""
    rng = np.random.default_rng(99)
    frozen = np.zeros((6, WIDE_LAYOUT.dim), np.float32)
    frozen[:, : WIDE_LAYOUT.semantic] = rng.standard_normal((6, WIDE_LAYOUT.semantic))
    frozen /= np.linalg.norm(frozen, axis=1, keepdims=True)
    tokens = np.full((6, 9), -1)
    for row in range(5):
        tokens[row, : 3 + row] = np.sort(rng.permutation(VOCABULARY)[: 3 + row])
    return frozen, tokens


def _set(maps: Sequence[AnalyticQueryMap | None], layout: VectorLayout = WIDE_LAYOUT) -> AnalyticMapSet:
    return AnalyticMapSet(layout, maps)


def _vectors(maps: AnalyticMapSet, texts: Texts) -> Floats:
    """Compute the vectors of all pairs, ``[n, T, dim]``."""
    count, tasks = len(texts[0]), len(maps)
    rows, positions = np.arange(count).repeat(tasks), np.tile(np.arange(tasks), count)
    return maps(texts[0], _pieces(texts[1]), rows, positions).reshape(count, tasks, -1)


def _pieces(tokens: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Remove the padding."""
    return [row[row >= 0] for row in tokens]


@pytest.mark.parametrize(
    "layout", [WIDE_LAYOUT, VectorLayout(20, 1.0, lexical=0)], ids=["words", "semantic alone"]
)
def test_vectors_equal_those_of_each_map(texts: Texts, layout: VectorLayout) -> None:
    maps = [_map(1, layout=layout), None, AnalyticQueryMap.neutral(layout), _map(2, np.float32, layout)]
    frozen, tokens = texts[0][:, : layout.dim], texts[1]
    vectors = _vectors(_set(maps, layout), (frozen, tokens))
    for index, query_map in enumerate(maps):
        expected = frozen if query_map is None else reference_vectors(query_map, frozen, tokens, layout)
        np.testing.assert_allclose(vectors[:, index], expected, atol=1e-6)


@pytest.mark.parametrize("layout", [WIDE_LAYOUT, VectorLayout(20, 1.0, lexical=0)])
def test_cosines_equal_those_of_vectors(
    texts: Texts, layout: VectorLayout, draw: Callable[..., Floats]
) -> None:
    maps = [_map(0, layout=layout), _map(1, layout=layout), None, AnalyticQueryMap.neutral(layout)]
    part = _set([*maps, _map(2, np.float32, layout)], layout).part(1, 5)
    frozen, tokens = texts[0][:, : layout.dim], texts[1]
    vectors = _vectors(part, (frozen, tokens))
    positions, shards = ([3, 0, 2, 1], [normalize_rows(draw(count, layout.dim)) for count in (5, 1, 0, 3)])
    for videos in shards:
        videos[:, layout.semantic + layout.lexical :] = (
            0  # where queries and videos have no common coordinate
        )
    computed = part.cosines(frozen, _pieces(tokens), positions, shards)
    for position, videos, cosines in zip(positions, shards, computed, strict=True):
        np.testing.assert_allclose(cosines, vectors[:, position] @ videos.T, atol=1e-6)


def test_vectors_do_not_depend_on_the_batch(texts: Texts) -> None:
    maps = _set([_map(seed) for seed in range(40)])
    vectors = _vectors(maps, texts)
    frozen, tokens = texts
    for row in range(len(frozen)):
        for position in (0, 17, 39):
            text = frozen[row : row + 1], tokens[row : row + 1]
            alone = maps(text[0], _pieces(text[1]), np.array([0]), np.array([position]))
            assert np.array_equal(alone[0], vectors[row, position])


def test_vectors_do_not_depend_on_the_order_of_growth(texts: Texts) -> None:
    maps = [_map(seed) if seed % 5 else None for seed in range(37)]
    vectors = _vectors(_set(maps), texts)
    grown = _set([])
    for count, query_map in enumerate(maps, start=1):
        grown = grown.extended([query_map])
        assert len(grown) == count
    assert np.array_equal(_vectors(grown, texts), vectors)
    assert np.array_equal(_vectors(grown.part(3, 30), texts), vectors[:, 3:30])
    rest = [grown.map(position) for position in range(20, 37)]
    assert np.array_equal(_vectors(grown.part(0, 9).extended(rest), texts)[:, 9:], vectors[:, 20:])
    assert np.array_equal(_vectors(grown.part(4, 9).extended(rest), texts)[:, :5], vectors[:, 4:9])


def test_sets_with_a_common_beginning_do_not_change_each_other(texts: Texts) -> None:
    before = _set([_map(seed) for seed in range(16)])
    vectors = _vectors(before, texts)
    first, second = before.extended([_map(16), _map(17)]), before.extended([_map(18, np.float32)])
    assert np.array_equal(_vectors(before, texts), vectors)
    assert np.array_equal(_vectors(first, texts)[:, 16:], _vectors(_set([_map(16), _map(17)]), texts))
    assert np.array_equal(_vectors(second, texts)[:, 16:], _vectors(_set([_map(18, np.float32)]), texts))


def test_caption_means_are_those_of_the_maps() -> None:
    maps = [_map(1), None, _map(3), _map(4)]  # the third has none
    means, has_mean = _set(maps).part(0, 4).caption_means
    assert has_mean.tolist() == [True, False, False, True]
    for index in (0, 3):
        query_map = maps[index]
        assert query_map is not None
        assert np.array_equal(means[index], query_map.caption_mean)
