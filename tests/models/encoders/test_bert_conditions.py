"""Adapters in a BERT: updates equal a tower whose weights contain them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from models.adapters.low_rank_text_update import TextUpdate
from models.adapters.tame import Tame
from models.encoders.tower_forward import encode_frames, encode_texts
from tests.trainer.methods.method_driver import random_frames
from tests.trainer.methods.small_driver import random_small_backbone

TEXTS = ["a star", "two stars spin around a red circle", "the ring bounces until it is gone"]


def _with_updates(backbone: Any, a: Tensor, b: Tensor) -> Any:
    """Copy a backbone, and add ``0.5 B A`` to the projections of its text tower."""
    merged = copy.deepcopy(backbone)
    for layer, lows, highs in zip(merged.text.bert.encoder.layer, a, b, strict=True):
        attention = layer.attention.self
        projections = attention.query, attention.key, attention.value, layer.attention.output.dense
        for projection, low, high in zip(projections, lows, highs, strict=True):
            projection.weight += 0.5 * high @ low
    return merged


@pytest.fixture
@torch.no_grad()
def trained() -> Any:
    """A backbone with random image blocks."""
    backbone = random_small_backbone().clone()
    for block in backbone.visual_blocks:
        for parameter in block.parameters():
            parameter.normal_(std=0.1)
    return backbone


@torch.no_grad()
def test_low_rank_update_equals_a_tower_with_changed_weights() -> None:
    torch.manual_seed(0)
    backbone = random_small_backbone()
    update = TextUpdate.for_backbone(backbone, rank=2, scale=0.5)
    update.b.normal_(std=0.3)
    update.words.normal_(std=0.1)
    merged = _with_updates(backbone, update.a, update.b)
    merged.token_embedding.weight += update.words
    ids = backbone.tokenize(TEXTS)
    updated = encode_texts(backbone, ids, update.as_update_set())[0]
    torch.testing.assert_close(updated, encode_texts(merged, ids)[0], atol=1e-5, rtol=0)
    assert (updated - encode_texts(backbone, ids)[0]).abs().max() > 0.01


@torch.no_grad()
def test_fixed_expert_of_tame_equals_a_tower_with_changed_weights() -> None:
    torch.manual_seed(1)
    backbone = random_small_backbone()
    tame = Tame(backbone.text_width, 2, experts=3, rank=2, scale=0.5).eval()
    tame.b.normal_(std=0.3)
    tame.add_task(expert=1)
    merged = _with_updates(backbone, tame.a, tame.b[:, :, 1])
    ids = backbone.tokenize(TEXTS)
    updated = encode_texts(backbone, ids, tame.condition([0]))[0]
    torch.testing.assert_close(updated, encode_texts(merged, ids)[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_trained_image_block_equals_a_plain_transformer_block(trained: Any) -> None:
    block = trained.visual_blocks[0]
    tokens = torch.randn(3, 5, trained.feature_dim)
    normalized = torch.nn.functional.layer_norm(tokens, tokens.shape[-1:])
    attended = tokens + block.attention(*(normalized.transpose(0, 1),) * 3)[0].transpose(0, 1)
    expected = attended + block.perceptron(torch.nn.functional.layer_norm(attended, tokens.shape[-1:]))
    torch.testing.assert_close(block(tokens), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_trained_tower_embeds_each_video_alone(trained: Any) -> None:
    frames = random_frames(0, 3)
    alone = torch.cat([encode_frames(trained, frames[n : n + 1])[0] for n in range(3)])
    torch.testing.assert_close(encode_frames(trained, frames)[0], alone, atol=1e-5, rtol=0)
