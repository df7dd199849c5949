"""Proxy-guided attention against one masked attention over the whole sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rivals.encoders.proxy_family import VideoProxies, encode_with_proxies
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.encoders.tower_forward import encode_frames
from tests.random_frames import random_frames

torch.set_num_threads(1)

FRAMES = 3


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(FRAMES)


def _proxies(backbone: Backbone, count: int, *, times: bool = True) -> VideoProxies:
    torch.manual_seed(3)
    proxies = VideoProxies(backbone, count)
    if times:
        nn.init.normal_(proxies.times)
    return proxies


def _attention(attention: nn.MultiheadAttention, tokens: Tensor, allowed: Tensor) -> Tensor:
    """Return the attention of tokens ``[S, width]``, where ``allowed [S, S]`` is whether a query attends to a key."""
    queries, keys, values = (tokens @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, dim=1)
    size = attention.head_dim
    heads = []
    for head in range(attention.num_heads):
        part = slice(head * size, (head + 1) * size)
        scores = queries[:, part] @ keys[:, part].T / size**0.5
        heads.append(scores.masked_fill(~allowed, -torch.inf).softmax(dim=1) @ values[:, part])
    return attention.out_proj(torch.cat(heads, dim=1))


def _reference(backbone: Backbone, video: Tensor, proxies: VideoProxies) -> Tensor:
    """Return the unit vector of one video ``[M, H, W, 3]``."""
    visual = backbone.clip.visual
    first = [visual.class_embedding, *proxies.added]
    sequence = [proxy + visual.positional_embedding[0] for proxy in first]
    frame_of: list[int | None] = [None] * len(first)
    kernel, size = visual.conv1.weight.flatten(1), visual.conv1.kernel_size[0]
    for number, frame in enumerate(video):
        pixels = (frame.permute(2, 0, 1) - backbone.mean[0]) / backbone.std[0]
        position = 0
        for top in range(0, pixels.shape[1], size):
            for left in range(0, pixels.shape[2], size):
                position += 1
                patch = kernel @ pixels[:, top : top + size, left : left + size].flatten()
                sequence.append(patch + visual.positional_embedding[position] + proxies.times[number])
                frame_of.append(number)
    allowed = torch.tensor([[q is None or k is None or q == k for k in frame_of] for q in frame_of])
    tokens = visual.ln_pre(torch.stack(sequence))
    for block in backbone.visual_blocks:
        tokens = tokens + block.ls_1(_attention(block.attn, block.ln_1(tokens), allowed))
        tokens = tokens + block.ls_2(block.mlp(block.ln_2(tokens)))
    return F.normalize(visual.ln_post(tokens[0]) @ visual.proj, dim=0)


@pytest.mark.parametrize("count", [1, 4])
def test_proxy_guided_attention_equals_the_reference(backbone: Backbone, count: int) -> None:
    proxies, frames = _proxies(backbone, count), random_frames(0, frames=FRAMES)
    with torch.no_grad():
        found = encode_with_proxies(backbone, frames, proxies)
        expected = torch.stack([_reference(backbone, video, proxies) for video in frames])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_one_frame_with_only_the_class_token_equals_clip(backbone: Backbone) -> None:
    frames = random_frames(1, frames=1)
    single = tiny_backbone(frames=1)
    single.load_tensors(backbone.tensors())
    found = encode_with_proxies(single, frames, VideoProxies(single, 1))
    torch.testing.assert_close(found, encode_frames(single, frames)[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_frame_order_matters_only_through_the_temporal_embedding(backbone: Backbone) -> None:
    frames = random_frames(2, frames=FRAMES)
    reversed_frames = frames.flip(1)
    timeless = _proxies(backbone, 4, times=False)
    forward, backward = (
        encode_with_proxies(backbone, order, timeless) for order in (frames, reversed_frames)
    )
    torch.testing.assert_close(forward, backward, atol=1e-5, rtol=0)
    timed = _proxies(backbone, 4)
    forward, backward = (encode_with_proxies(backbone, order, timed) for order in (frames, reversed_frames))
    assert (forward - backward).abs().max() > 1e-3


def test_gradients_reach_all_proxies(backbone: Backbone) -> None:
    proxies = VideoProxies(backbone, 4)
    torch.manual_seed(0)
    (
        encode_with_proxies(backbone, random_frames(5, frames=FRAMES), proxies) * torch.randn(2, backbone.dim)
    ).sum().backward()
    for name, parameter in proxies.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad.abs().amax(dim=1) > 0).all(), name
