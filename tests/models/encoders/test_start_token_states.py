"""Stored states of the start-of-text token give the same text vectors as computed ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.adapters.low_rank_text_update import TextUpdate, TextUpdateSet
from models.backbones.backbone import Backbone
from models.backbones.packed_text_tower import pack_text_tower
from models.backbones.tower_computation import mixed_precision
from models.encoders.tower_forward import PerTextCondition, encode_texts, start_token_states

TEXTS = ["a red star spins", "left", "", "a small blue square and a large green ring move from left to right"]
CANDIDATES = 3


@pytest.fixture(scope="module")
def updates(backbone: Backbone) -> TextUpdateSet:
    """Three tasks' updates, which change the embeddings of the texts' tokens and the start-of-text token."""
    ids = torch.unique(backbone.tokenize(TEXTS))
    parts = []
    for seed in range(CANDIDATES):
        torch.manual_seed(seed)
        update = TextUpdate.for_backbone(backbone, rank=4, scale=1.0).requires_grad_(False)
        update.b.normal_(std=0.05)
        update.words[ids] = 0.1 * torch.randn(len(ids), backbone.text_width)
        parts.append(update.as_update_set())
    return TextUpdateSet.stack(parts)


@pytest.fixture(params=["plain", "packed"])
def tower(request: pytest.FixtureRequest, backbone: Backbone) -> Backbone:
    return pack_text_tower(backbone) if request.param == "packed" else backbone


def _assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@torch.no_grad()
def test_stored_start_states_give_equal_vectors(tower: Backbone) -> None:
    ids = tower.tokenize(TEXTS)
    start = start_token_states(tower)
    assert start.shape == (len(tower.text_blocks), 2, 1, 1, tower.text_width)
    _assert_close(encode_texts(tower, ids, start=start), encode_texts(tower, ids))
    assert not torch.allclose(encode_texts(tower, ids, start=-start), encode_texts(tower, ids), atol=1e-2)


@torch.no_grad()
def test_start_states_differ_between_candidates(tower: Backbone, updates: TextUpdateSet) -> None:
    ids = tower.tokenize(TEXTS)
    start = start_token_states(tower, updates)
    assert start.shape[2:] == (CANDIDATES, 1, tower.text_width)
    expected = encode_texts(tower, ids, updates)
    _assert_close(encode_texts(tower, ids, updates, start), expected)
    assert not torch.allclose(encode_texts(tower, ids, updates, start.flip(2)), expected, atol=1e-3)


@torch.no_grad()
def test_start_states_are_selected_per_text(tower: Backbone, updates: TextUpdateSet) -> None:
    ids = tower.tokenize(TEXTS)
    which = torch.tensor([2, 0, 0, 1])
    start = start_token_states(tower, updates)[:, :, which].transpose(2, 3)
    each = PerTextCondition(updates.choose(which))
    _assert_close(encode_texts(tower, ids, each, start), encode_texts(tower, ids, each))


@torch.no_grad()
def test_start_states_of_mixed_precision_serve_mixed_precision(
    backbone: Backbone, updates: TextUpdateSet
) -> None:
    ids = backbone.tokenize(TEXTS)
    exact = encode_texts(backbone, ids, updates)
    with mixed_precision():
        found = encode_texts(backbone, ids, updates, start_token_states(backbone, updates))
        expected = encode_texts(backbone, ids, updates)
    rounding = (expected - exact).norm(dim=-1).max()
    assert rounding > 1e-4
    assert (found - expected).norm(dim=-1).max() < 2 * rounding
