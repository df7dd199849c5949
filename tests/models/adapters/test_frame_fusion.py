"""Frame Fusion Adapters against loops over equations 1 to 3."""

from __future__ import annotations

import math

import pytest
import torch

from models.adapters.frame_fusion import FrameFusion, FrameFusionAdapter
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.tower_forward import encode_frames

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
