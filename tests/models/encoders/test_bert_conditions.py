"""Adapters in a BERT: updates equal a tower whose weights contain them."""

from __future__ import annotations

import copy

import pytest
import torch

from models.adapters.low_rank_text_update import TextUpdate
from models.adapters.tame import Tame
from models.encoders.tower_forward import encode_frames, encode_texts
from tests.trainer.methods.method_driver import random_frames
from tests.trainer.methods.small_driver import random_small_backbone

TEXTS = ["a star", "two stars spin around a red circle", "the ring bounces until it is gone"]


@torch.no_grad()
def test_low_rank_update_equals_a_tower_with_changed_weights() -> None:
    torch.manual_seed(0)
    backbone = random_small_backbone()
    update = TextUpdate.for_backbone(backbone, rank=2, scale=0.5)
    update.b.normal_(std=0.3)
    update.words.normal_(std=0.1)
    merged = copy.deepcopy(backbone)
    merged.token_embedding.weight += update.words
    for layer, a, b in zip(merged.text.bert.encoder.layer, update.a, update.b, strict=True):
        attention = layer.attention.self
        projections = attention.query, attention.key, attention.value, layer.attention.output.dense
        for projection, low, high in zip(projections, a, b, strict=True):
            projection.weight += 0.5 * high @ low
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
    merged = copy.deepcopy(backbone)
    for layer, a, b in zip(merged.text.bert.encoder.layer, tame.a, tame.b, strict=True):
        attention = layer.attention.self
        projections = attention.query, attention.key, attention.value, layer.attention.output.dense
        for projection, low, experts in zip(projections, a, b, strict=True):
            projection.weight += 0.5 * experts[1] @ low
    ids = backbone.tokenize(TEXTS)
    updated = encode_texts(backbone, ids, tame.condition([0]))[0]
    torch.testing.assert_close(updated, encode_texts(merged, ids)[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_trained_image_block_equals_a_plain_transformer_block() -> None:
    backbone = random_small_backbone().clone()
    block = backbone.visual_blocks[0]
    for parameter in block.parameters():
        parameter.normal_(std=0.1)
    tokens = torch.randn(3, 5, backbone.visual_width)
    normalized = torch.nn.functional.layer_norm(tokens, tokens.shape[-1:])
    attended = tokens + block.attention(*(normalized.transpose(0, 1),) * 3)[0].transpose(0, 1)
    expected = attended + block.perceptron(torch.nn.functional.layer_norm(attended, tokens.shape[-1:]))
    torch.testing.assert_close(block(tokens), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("videos", [1, 3])
@torch.no_grad()
def test_trained_tower_embeds_each_video_alone(videos: int) -> None:
    backbone = random_small_backbone().clone()
    for block in backbone.visual_blocks:
        for parameter in block.parameters():
            parameter.normal_(std=0.1)
    frames = random_frames(0, videos)
    alone = torch.cat([encode_frames(backbone, frames[n : n + 1])[0] for n in range(videos)])
    torch.testing.assert_close(encode_frames(backbone, frames)[0], alone, atol=1e-5, rtol=0)
