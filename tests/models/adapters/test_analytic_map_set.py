"""Sets of query maps give the vectors of their maps, bit for bit the same in any batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.analytic_map_set import AnalyticMapSet
from models.adapters.analytic_maps import AnalyticQueryMap, VectorLayout
from tests.models.adapters.query_map_reference import reference_vectors

LAYOUT = VectorLayout(semantic=20, lexical=10, dim=32, semantic_weight=0.6)
VOCABULARY = 50


def _map(seed: int, dtype: torch.dtype = torch.float16, layout: VectorLayout = LAYOUT) -> AnalyticQueryMap:
    drawn = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(VOCABULARY, generator=drawn)[: 5 + seed % 7].sort().values
    return AnalyticQueryMap(
        center=torch.randn(layout.semantic, generator=drawn) / 10,
        caption_mean=torch.randn(layout.semantic, generator=drawn),
        tokens=tokens,
        token_weights=torch.rand(len(tokens), generator=drawn) + 0.5,
        unknown_token_weight=torch.tensor(2.0),
        lexicon=(torch.randn(len(tokens), layout.lexical, generator=drawn) / 4).to(dtype),
    )


@pytest.fixture
def texts() -> tuple[Tensor, Tensor]:
    """Frozen vectors and distinct tokens of six texts; the last has no token."""
    drawn = torch.Generator().manual_seed(99)
    frozen = F.pad(F.normalize(torch.randn(6, LAYOUT.semantic, generator=drawn), dim=-1), (0, 12))
    tokens = torch.full((6, 9), -1)
    for row in range(5):
        words = torch.randperm(VOCABULARY, generator=drawn)[: 3 + row].sort().values
        tokens[row, : len(words)] = words
    return frozen, tokens


def _set(maps: Sequence[AnalyticQueryMap | None], layout: VectorLayout = LAYOUT) -> AnalyticMapSet:
    return AnalyticMapSet.of(maps, layout, VOCABULARY)


def _vectors(maps: AnalyticMapSet, texts: tuple[Tensor, Tensor]) -> Tensor:
    """Vectors of all pairs, ``[n, T, dim]``."""
    count, tasks = len(texts[0]), len(maps)
    rows, positions = torch.arange(count).repeat_interleave(tasks), torch.arange(tasks).repeat(count)
    return maps(*texts, rows, positions).view(count, tasks, -1)


def test_vectors_equal_those_of_each_map(texts: tuple[Tensor, Tensor]) -> None:
    maps = [_map(1), None, AnalyticQueryMap.neutral(LAYOUT), _map(2, torch.float32), _map(3)]
    vectors = _vectors(_set(maps), texts)
    for place, query_map in enumerate(maps):
        expected = texts[0] if query_map is None else reference_vectors(query_map, *texts, LAYOUT)
        torch.testing.assert_close(vectors[:, place], expected, atol=1e-6, rtol=0)


def test_backbone_without_reserved_coordinates(texts: tuple[Tensor, Tensor]) -> None:
    layout = VectorLayout(semantic=20, lexical=0, dim=20, semantic_weight=1.0)
    maps = [_map(1, layout=layout), _map(2, layout=layout)]
    short = texts[0][:, :20], texts[1]
    vectors = _vectors(_set(maps, layout), short)
    for place, query_map in enumerate(maps):
        torch.testing.assert_close(
            vectors[:, place], reference_vectors(query_map, *short, layout), atol=1e-6, rtol=0
        )


def test_vectors_do_not_depend_on_the_batch(texts: tuple[Tensor, Tensor]) -> None:
    maps = _set([_map(seed) for seed in range(40)])
    vectors = _vectors(maps, texts)
    frozen, tokens = texts
    for row in range(len(frozen)):
        length = max(1, int((tokens[row] >= 0).sum()))
        for position in (0, 17, 39):
            alone = maps(
                frozen[row : row + 1],
                tokens[row : row + 1, :length],
                torch.tensor([0]),
                torch.tensor([position]),
            )
            assert torch.equal(alone[0], vectors[row, position])


def test_vectors_do_not_depend_on_the_order_of_growth(texts: tuple[Tensor, Tensor]) -> None:
    maps = [_map(seed) if seed % 5 else None for seed in range(37)]
    vectors = _vectors(_set(maps), texts)
    grown = _set([])
    for count, query_map in enumerate(maps, start=1):
        grown += _set([query_map])
        assert len(grown) == count
    assert torch.equal(_vectors(grown, texts), vectors)
    assert torch.equal(_vectors(grown.part(3, 30), texts), vectors[:, 3:30])
    assert torch.equal(_vectors(grown.part(0, 9) + grown.part(20, 37), texts)[:, 9:], vectors[:, 20:])


def test_growth_shares_the_maps_of_earlier_tasks() -> None:
    before = _set([_map(seed) for seed in range(16)])
    after = before.part(0, 16) + _set([_map(16)])
    old, new = (maps.tensors(0) for maps in (before, after))
    assert old is not None
    assert new is not None
    assert old["center"].data_ptr() == new["center"].data_ptr()
    assert after.bytes == before.bytes + _set([_map(16)]).bytes


def test_tensors_of_a_task_do_not_depend_on_its_place() -> None:
    grown = _set([_map(1), None]) + _set([_map(2)])
    found, expected = grown.tensors(2), _set([_map(2)]).tensors(0)
    assert found is not None
    assert expected is not None
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert grown.tensors(1) is None


def test_half_precision_takes_half_the_memory() -> None:
    half, single = (_set([_map(seed, dtype) for seed in range(20)]) for dtype in (torch.half, torch.float))
    rows = sum(len(_map(seed).tokens) for seed in range(20))
    assert single.bytes - half.bytes == 2 * rows * LAYOUT.lexical
