"""Sets of query maps give the vectors of their maps, bit for bit the same in any batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from models.adapters.analytic_maps import AnalyticMapSet, AnalyticQueryMap, Floats, VectorLayout
from tests.models.adapters.query_map_reference import reference_vectors

LAYOUT = VectorLayout(semantic=20, lexical=10, semantic_weight=0.6)
VOCABULARY = 50

Texts = tuple[Floats, npt.NDArray[np.int64]]


def _map(seed: int, dtype: npt.DTypeLike = np.float16, layout: VectorLayout = LAYOUT) -> AnalyticQueryMap:
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
    frozen = np.zeros((6, LAYOUT.dim), np.float32)
    frozen[:, : LAYOUT.semantic] = rng.standard_normal((6, LAYOUT.semantic))
    frozen /= np.linalg.norm(frozen, axis=1, keepdims=True)
    tokens = np.full((6, 9), -1)
    for row in range(5):
        tokens[row, : 3 + row] = np.sort(rng.permutation(VOCABULARY)[: 3 + row])
    return frozen, tokens


def _set(maps: Sequence[AnalyticQueryMap | None], layout: VectorLayout = LAYOUT) -> AnalyticMapSet:
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
    "layout", [LAYOUT, VectorLayout(20, 1.0, lexical=0)], ids=["words", "semantic alone"]
)
def test_vectors_equal_those_of_each_map(texts: Texts, layout: VectorLayout) -> None:
    maps = [_map(1, layout=layout), None, AnalyticQueryMap.neutral(layout), _map(2, np.float32, layout)]
    frozen, tokens = texts[0][:, : layout.dim], texts[1]
    vectors = _vectors(_set(maps, layout), (frozen, tokens))
    for index, query_map in enumerate(maps):
        expected = frozen if query_map is None else reference_vectors(query_map, frozen, tokens, layout)
        np.testing.assert_allclose(vectors[:, index], expected, atol=1e-6)


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
