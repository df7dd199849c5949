"""Devices, and mixed precision, which changes products of a tower but not the types of vectors and gradients."""

from __future__ import annotations

import pytest
import torch

from models.backbones.backbone_loading import tiny_backbone
from models.backbones.tower_computation import compute_device, forward_precision, mixed_precision
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import ModelError


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


@pytest.mark.parametrize(
    ("has_gpu", "name", "device"),
    [
        (False, "cpu", "cpu"),
        (True, "cpu", "cpu"),
        (False, "auto", "cpu"),
        (True, "auto", "cuda"),
        (True, "cuda", "cuda"),
    ],
)
def test_compute_device_selects_the_device(
    monkeypatch: pytest.MonkeyPatch, has_gpu: bool, name: str, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert compute_device(name).type == device


@pytest.mark.parametrize(
    ("name", "message"), [("cuda", "finds no usable one"), ("tpu", "device 'tpu' is unknown")]
)
def test_compute_device_refuses_unavailable_devices(
    monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=message):
        compute_device(name)
