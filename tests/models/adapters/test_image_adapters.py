"""Adapters of image towers against loops and matrices."""

from __future__ import annotations

import math

import pytest
import torch

from models.adapters.image_adapters import FrameFusion, FrameFusionAdapter, LowRankImageTower, LowRankUpdate
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.tower_forward import encode_frames
from tests.random_frames import random_frames

FRAMES, TOKENS, WIDTH, HEADS = 4, 5, 8, 2


def _randomize(adapter: FrameFusionAdapter, alpha: float) -> FrameFusionAdapter:
    """Give the adapter random weights and a gate."""
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    adapter.alpha.data.fill_(alpha)
    return adapter


def _reference(adapter: FrameFusionAdapter, tokens: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    """Fuse the tokens of one video frame by frame, head by head and query by query."""
    size = WIDTH // HEADS
    result = torch.zeros_like(tokens)
    for m in range(FRAMES):
        source = min(m + 1, FRAMES - 1) if adapter.forward_in_time else max(m - 1, 0)
        query = tokens[source] @ adapter.query.weight.T + adapter.query.bias
        key = tokens[m] @ adapter.key.weight.T + adapter.key.bias
        value = tokens[m] @ adapter.value.weight.T + adapter.value.bias
        joined = torch.zeros(TOKENS, WIDTH)
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            for i in range(TOKENS):
                scores = torch.stack([query[i, part] @ key[j, part] / math.sqrt(size) for j in range(TOKENS)])
                for j, weight in enumerate(torch.exp(scores) / torch.exp(scores).sum()):
                    joined[i, part] += weight * value[j, part]
        crossed = joined @ adapter.out.weight.T + adapter.out.bias
        keep = 1.0 if adapter.mix == "additive" else 1 - adapter.alpha
        result[m] = keep * attended[m] + adapter.alpha * crossed
    return result


@pytest.mark.parametrize("mix", ["additive", "convex"])
@pytest.mark.parametrize("forward_in_time", [False, True])
def test_fusion_follows_equations_1_and_3(mix: str, forward_in_time: bool) -> None:
    torch.manual_seed(0)
    adapter = _randomize(FrameFusionAdapter(WIDTH, HEADS, forward_in_time=forward_in_time, mix=mix), 0.3)
    tokens, attended = torch.randn(2, FRAMES, TOKENS, WIDTH), torch.randn(2, FRAMES, TOKENS, WIDTH)
    fused = adapter(tokens, attended)
    for video in range(2):
        expected = _reference(adapter, tokens[video], attended[video])
        torch.testing.assert_close(fused[video], expected, atol=1e-5, rtol=1e-4)


def test_first_tokens_alone_are_fused_equally() -> None:
    torch.manual_seed(0)
    adapter = _randomize(FrameFusionAdapter(WIDTH, HEADS), 0.3)
    tokens, attended = torch.randn(2, FRAMES, TOKENS, WIDTH), torch.randn(2, FRAMES, TOKENS, WIDTH)
    torch.testing.assert_close(adapter(tokens, attended[:, :, :2]), adapter(tokens, attended)[:, :, :2])


def test_frame_order_matters_only_with_open_gates() -> None:
    torch.manual_seed(0)
    backbone = tiny_backbone(frames=FRAMES)
    fusion = FrameFusion(128, 4, 4, layers=4, neighbor="previous")
    frames = torch.randint(0, 256, (2, FRAMES, 56, 56, 3), dtype=torch.uint8)
    closed, _ = encode_frames(backbone, frames, fusion)
    closed_reversed, _ = encode_frames(backbone, frames.flip(1), fusion)
    torch.testing.assert_close(closed, closed_reversed, atol=1e-5, rtol=1e-4)
    for gate in fusion.gates():
        gate.data.fill_(0.5)
    opened, _ = encode_frames(backbone, frames, fusion)
    opened_reversed, _ = encode_frames(backbone, frames.flip(1), fusion)
    assert (opened - opened_reversed).abs().max() > 1e-3


def test_adapters_are_in_the_deepest_blocks_and_alternate() -> None:
    fusion = FrameFusion(WIDTH, HEADS, 6, layers=4, neighbor="alternate")
    assert [fusion.at(i) is not None for i in range(6)] == [False, False, True, True, True, True]
    assert [fusion.at(i).forward_in_time for i in range(2, 6)] == [False, True, False, True]
    assert len(fusion.gates()) == 4


def test_update_adds_the_scaled_product_to_the_weight() -> None:
    weight = torch.randn(4, 3)
    update = LowRankUpdate(weight, rank=2, scale=0.5)
    assert torch.equal(update(weight), weight)
    torch.nn.init.normal_(update.b)
    changed = update(weight)
    for i in range(4):
        for j in range(3):
            ba = sum((update.b[i, r] * update.a[r, j]).item() for r in range(2))
            assert changed[i, j].item() == pytest.approx(weight[i, j].item() + 0.5 * ba, abs=1e-6)
    assert torch.linalg.matrix_rank(changed - weight) <= 2


def test_all_block_matrices_and_nothing_else_are_trainable(backbone: Backbone) -> None:
    tower = LowRankImageTower(backbone, rank=4, scale=1.0)
    matrices = {
        name
        for index, block in enumerate(backbone.visual_blocks)
        for name, parameter in ((f"{index}.{n}", p) for n, p in block.named_parameters())
        if parameter.ndim == 2
    }
    assert {name.rsplit(".", 1)[0] for name in tower.tensors()} == matrices
    trained = {id(p) for p in tower.update_parameters()}
    assert {id(p) for p in tower.backbone.parameters() if p.requires_grad} == trained
    encode_frames(tower.backbone, random_frames(1))[0].sum().backward()
    assert all(update.grad is not None for update in tower.update_parameters())
    assert not any(p.requires_grad or p.grad is not None for p in backbone.parameters())


def test_image_tower_tensors_round_trip(backbone: Backbone) -> None:
    first, second = (LowRankImageTower(backbone, rank=4, scale=1.0) for _ in range(2))
    for update in first.update_parameters():
        torch.nn.init.normal_(update, std=0.1)
    vectors, other = (encode_frames(tower.backbone, random_frames(1))[0] for tower in (first, second))
    assert not torch.equal(vectors, other)
    second.load_tensors(first.tensors())
    assert torch.equal(vectors, encode_frames(second.backbone, random_frames(1))[0])
    with pytest.raises(KeyError):
        second.load_tensors({})
