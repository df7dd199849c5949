"""Gradient checkpointing runs blocks twice and does not change gradients."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn

from models.adapters.frame_fusion import FrameFusion
from models.adapters.tame import Tame
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.backbones.tower_computation import (
    encode_in_parts,
    gradient_checkpointing,
    micro_batches,
    mixed_precision,
    run_checkpointed,
)
from models.encoders.tower_forward import encode_frames, encode_texts

TEXTS = ["a red circle moves left", "a square", "two stars spin and then vanish"]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny_backbone(frames=2).requires_grad_(True)


@pytest.fixture(scope="module")
def adapters() -> tuple[FrameFusion, Tame]:
    torch.manual_seed(1)
    fusion, tame = FrameFusion(128, 4, 4, layers=2), Tame(128, 4, experts=3, rank=2, dropout=0.5)
    for gate in fusion.gates():
        gate.data.fill_(0.3)
    nn.init.normal_(tame.b, std=0.1)
    tame.add_task()
    return fusion, tame


def _gradients(
    backbone: Backbone, adapters: tuple[FrameFusion, Tame], *, enabled: bool, mixed: bool
) -> tuple[list[Tensor], Counter[str]]:
    """Compute all gradients with dropout and routing noise, and count the MLP runs per tower."""
    fusion, tame = adapters
    runs: Counter[str] = Counter()
    parameters = [*backbone.clip.parameters(), *fusion.parameters(), *tame.parameters()]
    torch.manual_seed(2)
    frames = torch.randint(0, 256, (3, 2, 56, 56, 3), dtype=torch.uint8)
    with ExitStack() as hooks:
        for name, blocks in {"image": backbone.visual_blocks, "text": backbone.text_blocks}.items():
            for block in blocks:
                handle = block.mlp.register_forward_pre_hook(lambda *_, tower=name: runs.update([tower]))
                hooks.callback(handle.remove)
        with mixed_precision(enabled=mixed), gradient_checkpointing(enabled=enabled):
            videos = encode_frames(backbone, frames, fusion)[0]
            texts = encode_texts(backbone, backbone.tokenize(TEXTS), tame.condition([0]))[0]
        gradients = torch.autograd.grad((videos @ texts.T).diag().sum(), parameters, allow_unused=True)
    return [gradient for gradient in gradients if gradient is not None], runs


@pytest.mark.parametrize("mixed", [False, True])
def test_checkpointing_gives_bitwise_equal_gradients(
    backbone: Backbone, adapters: tuple[FrameFusion, Tame], mixed: bool
) -> None:
    plain, once = _gradients(backbone, adapters, enabled=False, mixed=mixed)
    checkpointed, twice = _gradients(backbone, adapters, enabled=True, mixed=mixed)
    assert once == {"image": 4, "text": 4}
    assert twice == {"image": 8, "text": 8}
    assert len(plain) == len(checkpointed)
    assert all(map(torch.equal, plain, checkpointed))
    assert sum(gradient.abs().sum() > 0 for gradient in plain) > 100


@pytest.mark.parametrize("in_parts", [False, True])
def test_error_in_the_forward_pass_leaves_the_next_graph_alone(in_parts: bool) -> None:
    def fail(tokens: Tensor) -> tuple[Tensor]:
        raise torch.OutOfMemoryError(str(tokens.exp().sum()))

    def run() -> None:
        with micro_batches(1), gradient_checkpointing():
            if in_parts:
                encode_in_parts(fail, tokens)
            run_checkpointed(fail, tokens, device=torch.device("cpu"))

    tokens = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(torch.OutOfMemoryError) as kept:
        run()
    (gradient,) = torch.autograd.grad(tokens.square().sum(), [tokens])
    assert torch.equal(gradient, 2 * torch.ones(2, 3))
    assert kept.value.args
