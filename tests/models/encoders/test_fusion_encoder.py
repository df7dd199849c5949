"""The multi-modal encoder: its layers against loops, and the range of its attention."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from models.backbones.backbone import Backbone
from models.encoders.fusion_encoder import FusionEncoder, create_fusion_encoder, frame_states, text_states
from models.encoders.tower_forward import encode_frames, encode_texts
from tests.random_frames import random_frames

FRAMES, WIDTH, VISUAL, HEADS, WORDS, TOKENS, VOCABULARY = 2, 8, 6, 2, 4, 3, 11
TEXTS = ["a red circle", "a square that moves to the left"]


@pytest.fixture(scope="module")
def fusion(backbone: Backbone) -> FusionEncoder:
    torch.manual_seed(1)
    return create_fusion_encoder(backbone, layers=2)


def _small_encoder(layers: int = 1) -> FusionEncoder:
    torch.manual_seed(2)
    encoder = FusionEncoder(WIDTH, VISUAL, HEADS, layers=layers, frames=FRAMES, vocabulary=VOCABULARY)
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoder


def _fuse_pairs(fusion: FusionEncoder, backbone: Backbone, ids: Tensor, tokens: Tensor) -> Tensor:
    """Return unit vectors ``[n, width]``: the fused states at the ends of the texts."""
    end = backbone.end_of_text(ids)
    fused = fusion.fuse(backbone, backbone.embed_words(backbone.token_embedding(ids)), end, tokens)
    return torch.nn.functional.normalize(fused[torch.arange(len(ids)), end], dim=-1)


def _layer_norm(vector: Tensor, layer: Any) -> Tensor:
    centered = vector - vector.mean()
    return centered / torch.sqrt((centered**2).mean() + layer.eps) * layer.weight + layer.bias


def _attend(attention: Any, query: Tensor, source: list[Tensor]) -> Tensor:
    """Compute one query's attention over a list of vectors, head by head."""
    if attention.in_proj_weight is None:
        wq, wk, wv = attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight
    else:
        wq, wk, wv = attention.in_proj_weight.chunk(3)
    bq, bk, bv = attention.in_proj_bias.chunk(3)
    size = WIDTH // HEADS
    joined = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = [float((wq @ query + bq)[part] @ (wk @ s + bk)[part]) / math.sqrt(size) for s in source]
        total = sum(math.exp(score) for score in scores)
        weights = [math.exp(score) / total for score in scores]
        joined.append(sum(w * (wv @ s + bv)[part] for w, s in zip(weights, source, strict=True)))
    return attention.out_proj(torch.cat(joined))  # type: ignore[arg-type]


@torch.no_grad()
def test_layer_equals_a_reference_loop() -> None:
    encoder = _small_encoder()
    texts, videos = torch.randn(2, WORDS, WIDTH), torch.randn(2, FRAMES, TOKENS, VISUAL)
    end = torch.tensor([1, 3])
    result = encoder(texts, end, videos)
    layer: Any = encoder.layers[0]
    for n in range(2):
        patches = [videos[n, m, p] + encoder.times[m, 0] for m in range(FRAMES) for p in range(TOKENS)]
        words = [_layer_norm(texts[n, i], layer.norm_words) for i in range(int(end[n]) + 1)]
        for i in range(int(end[n]) + 1):
            hidden = texts[n, i] + _attend(layer.words, words[i], words)
            hidden = hidden + _attend(layer.video, _layer_norm(hidden, layer.norm_video), patches)
            inner = layer.mlp[1].weight @ _layer_norm(hidden, layer.mlp[0]) + layer.mlp[1].bias
            inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
            hidden = hidden + layer.mlp[3].weight @ inner + layer.mlp[3].bias
            torch.testing.assert_close(result[n, i], _layer_norm(hidden, encoder.norm), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_states_pool_to_the_vectors_of_the_towers(backbone: Backbone) -> None:
    frames, ids = random_frames(1), backbone.tokenize(TEXTS)
    videos, _ = backbone.pool_frames(frame_states(backbone, frames))
    torch.testing.assert_close(videos, encode_frames(backbone, frames)[0], atol=1e-5, rtol=1e-4)
    states = text_states(
        backbone, backbone.embed_words(backbone.token_embedding(ids)), backbone.end_of_text(ids)
    )
    texts = backbone.pool_text(states, backbone.end_of_text(ids))
    torch.testing.assert_close(texts, encode_texts(backbone, ids)[0], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_padding_does_not_change_fused_states(backbone: Backbone, fusion: FusionEncoder) -> None:
    frames = random_frames(1)
    batch = _fuse_pairs(fusion, backbone, backbone.tokenize(TEXTS), frame_states(backbone, frames))
    alone = _fuse_pairs(fusion, backbone, backbone.tokenize(TEXTS[:1]), frame_states(backbone, frames[:1]))
    torch.testing.assert_close(batch[:1], alone, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_masked_word_keeps_only_its_position(backbone: Backbone, fusion: FusionEncoder) -> None:
    ids = backbone.tokenize(TEXTS)
    masked = torch.zeros_like(ids, dtype=torch.bool)
    masked[0, 2] = True
    embedded = fusion.embed_masked(backbone, ids, masked)
    torch.testing.assert_close(embedded[0, 2], fusion.mask + backbone.text.positional_embedding[2])
    torch.testing.assert_close(
        embedded[~masked], backbone.embed_words(backbone.token_embedding(ids))[~masked]
    )
    other = ids.clone()
    other[0, 2] = 17
    assert torch.equal(fusion.embed_masked(backbone, other, masked), embedded)


@torch.no_grad()
def test_token_embedding_is_the_word_classifier() -> None:
    encoder = _small_encoder()
    states, embedding = torch.randn(3, WIDTH), torch.randn(VOCABULARY, WIDTH)
    logits = encoder.predict_words(states, embedding)
    first: Any = encoder.head[0]
    for i in range(3):
        inner = first.weight @ states[i] + first.bias
        inner = _layer_norm(inner * (1 + torch.erf(inner / math.sqrt(2))) / 2, encoder.head[2])
        for word in range(VOCABULARY):
            expected = inner @ embedding[word] + encoder.bias[word]
            torch.testing.assert_close(logits[i, word], expected, atol=1e-5, rtol=1e-4)
