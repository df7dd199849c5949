"""How towers compute: attention against a reference, devices, mixed precision, and gradient checkpointing."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn

from models.adapters.image_adapters import FrameFusion
from models.adapters.tame import Tame
from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.backbones.tower_computation import (
    compute_device,
    encode_in_parts,
    forward_precision,
    gradient_checkpointing,
    merge_heads,
    micro_batches,
    mixed_precision,
    run_checkpointed,
    scaled_dot_product_attention,
    split_heads,
)
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import ModelError

HEADS, SIZE, LENGTH = 2, 4, 6


def _reference(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """Compute the attention of ``[heads, L, d]`` in float64."""
    query, key, value = query.double(), key.double(), value.double()
    result = torch.zeros_like(query)
    for head in range(HEADS):
        for i in range(query.shape[1]):
            keys = i + 1 if causal else LENGTH
            scores = torch.stack([query[head, i] @ key[head, j] / math.sqrt(SIZE) for j in range(keys)])
            weights = torch.exp(scores - scores.max())
            for j, weight in enumerate(weights / weights.sum()):
                result[head, i] = result[head, i] + weight * value[head, j]
    return result


def _random_leaves(dtype: torch.dtype) -> list[Tensor]:
    """Query, key and value that require gradients."""
    torch.manual_seed(0)
    return [torch.randn(HEADS, LENGTH, SIZE).to(dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_attention_and_gradients_equal_the_reference(
    dtype: torch.dtype, tolerance: float, causal: bool
) -> None:
    leaves = _random_leaves(dtype)
    output = scaled_dot_product_attention(*leaves, causal=causal)
    assert output.dtype == dtype
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = _reference(*exact, causal)
    weights = torch.randn(output.shape)
    gradients = torch.autograd.grad((output.float() * weights).sum(), leaves)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), exact)
    torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=2 * tolerance)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(
            gradient.double(), expected_gradient, atol=3 * tolerance, rtol=3 * tolerance
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_attention_of_candidates_equals_that_of_each(dtype: torch.dtype) -> None:
    leaves = [torch.randn(3, 2, HEADS, LENGTH, SIZE).to(dtype) for _ in range(3)]
    with torch.no_grad():
        output = scaled_dot_product_attention(*leaves, causal=True)
        for each, *parts in zip(output, *leaves, strict=True):
            torch.testing.assert_close(each, scaled_dot_product_attention(*parts, causal=True))


def test_merge_heads_inverts_split_heads() -> None:
    tokens = torch.arange(2 * 3 * 8.0).view(2, 3, 8)
    heads = split_heads(tokens, HEADS)
    assert heads.shape == (2, HEADS, 3, 4)
    assert heads[1, 1, 2].equal(tokens[1, 2, 4:])
    assert merge_heads(heads).equal(tokens)


def test_mixed_precision_vectors_are_float32_and_close() -> None:
    torch.manual_seed(0)
    backbone = tiny_backbone(frames=2).requires_grad_(True)
    frames = torch.randint(0, 256, (3, 2, 56, 56, 3), dtype=torch.uint8)
    ids = backbone.tokenize(["a red circle moves left", "a square", "two stars spin and then vanish"])
    plain = encode_frames(backbone, frames)[0], encode_texts(backbone, ids)[0]
    with mixed_precision():
        mixed = encode_frames(backbone, frames)[0], encode_texts(backbone, ids)[0]
    for exact, rounded in zip(plain, mixed, strict=True):
        assert rounded.dtype == torch.float32
        assert not torch.equal(exact, rounded)
        assert (exact * rounded).sum(dim=-1).min() > 0.999
        torch.testing.assert_close(rounded.norm(dim=-1), torch.ones(3))
    (mixed[0] @ mixed[1].T).trace().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in backbone.parameters())
    assert any(p.grad is not None for p in backbone.parameters())


def test_mixed_precision_applies_only_inside_its_context() -> None:
    left, right = torch.randn(4, 4), torch.randn(4, 4)

    def dtype() -> torch.dtype:
        with forward_precision(torch.device("cpu")):
            return (left @ right).dtype

    assert dtype() == torch.float32
    with mixed_precision():
        assert dtype() == torch.bfloat16
        with mixed_precision(enabled=False):
            assert dtype() == torch.float32
        assert (left @ right).dtype == torch.float32  # losses are not rounded
    assert dtype() == torch.float32


def test_compute_device_selects_the_device_or_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_gpu, expected in ((True, ["cpu", "cuda", "cuda"]), (False, ["cpu", "cpu"])):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        names = ("cpu", "auto", "cuda")[: len(expected)]
        assert [compute_device(name).type for name in names] == expected
    for name, message in (("cuda", "finds no usable one"), ("tpu", "device 'tpu' is unknown")):
        with pytest.raises(ModelError, match=message):
            compute_device(name)


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
    with pytest.raises(torch.OutOfMemoryError) as raised:
        run()
    (gradient,) = torch.autograd.grad(tokens.square().sum(), [tokens])
    assert torch.equal(gradient, 2 * torch.ones(2, 3))
    assert raised.value.args
