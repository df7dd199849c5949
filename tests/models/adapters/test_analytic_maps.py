"""Maps of the analytic method against the formula of the score."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.adapters.analytic_map_set import AnalyticMapSet
from models.adapters.analytic_maps import AnalyticQueryMap, AnalyticVideoMap, VectorLayout
from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import random_backbone, reserved_backbone

LAYOUT = VectorLayout(semantic=3, lexical=2, dim=7, semantic_weight=0.6)


@pytest.fixture(scope="module")
def draw() -> Callable[..., Tensor]:
    """``draw(*size)``: normally distributed numbers."""
    generator = torch.Generator().manual_seed(0)
    return lambda *size: torch.randn(*size, generator=generator)


def _query_map(center: Tensor | None = None) -> AnalyticQueryMap:
    """Map with two known tokens, each of which has a lexical coordinate of its own."""
    return AnalyticQueryMap(
        center=torch.zeros(3) if center is None else center,
        caption_mean=torch.zeros(3),
        tokens=torch.tensor([3, 8]),
        token_weights=torch.tensor([1.0, 2.0]),
        unknown_token_weight=torch.tensor(3.0),
        lexicon=torch.eye(2),
    )


def _encode(query_map: AnalyticQueryMap, frozen: Tensor, tokens: Tensor) -> Tensor:
    """Query vectors ``[n, dim]`` of a set with the map alone."""
    rows = torch.arange(len(frozen))
    return AnalyticMapSet.of([query_map], LAYOUT, 60)(frozen, tokens, rows, torch.zeros_like(rows))


# -- layout ----------------------------------------------------------------------------------------------


def test_layout_leaves_two_coordinates_for_completions() -> None:
    backbone = reserved_backbone()
    assert (backbone.dim, backbone.reserved_dims) == (16, 6)
    assert VectorLayout.for_backbone(backbone, 0.7) == VectorLayout(10, 4, 16, 0.7)


def test_backbone_without_reserved_coordinates_has_semantic_vectors_alone(
    draw: Callable[..., Tensor],
) -> None:
    layout = VectorLayout.for_backbone(random_backbone(), 0.6)
    assert layout == VectorLayout(16, 0, 16, 1.0)
    semantic = draw(4, 16)
    for is_video in (False, True):
        joined = layout.join(semantic, torch.zeros(4, 0), is_video=is_video)
        torch.testing.assert_close(joined, F.normalize(semantic, dim=-1))


def test_cosine_of_joined_vectors_is_the_weighted_sum_of_both_parts(draw: Callable[..., Tensor]) -> None:
    queries, videos = F.normalize(draw(5, 3), dim=-1), F.normalize(draw(6, 3), dim=-1)
    words = F.normalize(draw(5, 2), dim=-1) * torch.linspace(0, 1, 5)[:, None]
    described = F.normalize(draw(6, 2), dim=-1) * torch.linspace(1, 0.2, 6)[:, None]
    q = LAYOUT.join(queries, words, is_video=False)
    v = LAYOUT.join(videos, described, is_video=True)
    for vectors in (q, v):
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(vectors)))
    torch.testing.assert_close(q @ v.T, 0.6 * queries @ videos.T + 0.4 * words @ described.T)


# -- queries ---------------------------------------------------------------------------------------------


def test_query_score_by_hand() -> None:
    center = torch.tensor([0.0, 0.5, 0.0])
    frozen = torch.tensor([[0.6, 0.5, 0.8, 9.0]])  # coordinates after the semantic part are ignored
    tokens = torch.tensor([[3, 8, 50]])  # 50 is unknown
    query = _encode(_query_map(center), frozen, tokens)
    assert query.norm().item() == pytest.approx(1)

    semantic, lexical = torch.tensor([[0.0, 0.6, 0.8]]), torch.tensor([[0.8, -0.6]])
    video = LAYOUT.join(semantic, lexical, is_video=True)
    known_share = math.sqrt(1 + 4) / math.sqrt(1 + 4 + 9)
    lexical_cosine = (1 * 0.8 + 2 * -0.6) / math.sqrt(5)
    expected = 0.6 * (0.8 * 0.8) + 0.4 * known_share * lexical_cosine
    assert (query @ video.T).item() == pytest.approx(expected)


def test_neutral_map_keeps_the_frozen_direction_and_knows_no_words(draw: Callable[..., Tensor]) -> None:
    frozen = F.normalize(draw(4, 3), dim=-1)
    neutral = AnalyticQueryMap.neutral(LAYOUT)
    assert len(neutral.caption_mean) == 0
    query = _encode(neutral, frozen, torch.tensor([[3, 8]] * 4))
    torch.testing.assert_close(query[:, :3], math.sqrt(0.6) * frozen)
    assert not query[:, 3:6].any()
    torch.testing.assert_close(query[:, 6], torch.full((4,), math.sqrt(0.4)))


# -- videos ----------------------------------------------------------------------------------------------


def test_video_vectors_follow_the_formula(draw: Callable[..., Tensor]) -> None:
    backbone: Backbone = reserved_backbone()
    layout = VectorLayout.for_backbone(backbone, 0.6)
    features, weight, offset = draw(5, backbone.feature_dim), draw(backbone.feature_dim, 14), draw(14)
    video_map = AnalyticVideoMap(weight, offset, torch.tensor(0.3))
    vectors = video_map(backbone, features, layout)
    assert vectors.norm(dim=-1).tolist() == pytest.approx([1] * 5)
    for vector, x in zip(vectors, features, strict=True):
        semantic = x @ weight[:, :10] + offset[:10] + 0.3 * backbone.project_features(x[None])[0, :10]
        lexical = x @ weight[:, 10:] + offset[10:]
        torch.testing.assert_close(vector[:10], math.sqrt(0.6) * semantic / semantic.norm())
        torch.testing.assert_close(vector[10:14], math.sqrt(0.4) * lexical / lexical.norm())
        assert vector[14:].abs().max() < 1e-3


def test_video_without_lexical_prediction_is_completed_to_unit_length(draw: Callable[..., Tensor]) -> None:
    backbone = reserved_backbone()
    layout = VectorLayout.for_backbone(backbone, 0.6)
    weight, offset = torch.zeros(backbone.feature_dim, 14), torch.zeros(14)
    video_map = AnalyticVideoMap(weight, offset, torch.tensor(1.0))
    features = draw(2, backbone.feature_dim)
    vectors = video_map(backbone, features, layout)
    torch.testing.assert_close(vectors[:, :10], math.sqrt(0.6) * backbone.project_features(features)[:, :10])
    assert not vectors[:, 10:14].any()
    torch.testing.assert_close(vectors[:, 14], torch.full((2,), math.sqrt(0.4)))


# -- storage ---------------------------------------------------------------------------------------------


def test_maps_survive_storage_and_refuse_a_missing_tensor(draw: Callable[..., Tensor]) -> None:
    query_map = _query_map(draw(3))
    tensors = query_map.tensors()
    loaded = AnalyticQueryMap.from_tensors(tensors)
    assert all(torch.equal(loaded.tensors()[name], tensor) for name, tensor in tensors.items())
    del tensors["center"]
    with pytest.raises(KeyError, match="center"):
        AnalyticQueryMap.from_tensors(tensors)
