"""Towers and what they are asked under stay on one device.

Without a GPU, torch's make-believe tensors stand for it: they have shapes and devices, and refuse to be mixed.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from models.adapters.low_rank_text_update import TextUpdate, TextUpdateSet
from models.adapters.tame import Tame
from models.backbones.backbone_loading import tiny_backbone
from models.backbones.packed_text_tower import pack_text_tower
from models.backbones.precision import compute_device
from models.encoders.text_condition import PerTextCondition, TextCondition
from models.encoders.tower_forward import encode_frames, encode_texts
from models.errors import ModelError

CUDA = torch.device("cuda", 0)


def _moved(module: nn.Module) -> None:
    """As ``to`` does, which make-believe tensors do not know."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            part.register_parameter(name, nn.Parameter(torch.empty_like(parameter, device=CUDA), False))
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, torch.empty_like(buffer, device=CUDA))


def test_towers_compute_on_the_device_they_are_on() -> None:
    backbone = tiny_backbone(frames=2)
    ids = backbone.tokenize(["a red star spins", "left"])
    updates = TextUpdateSet.stack(
        [
            TextUpdate(
                backbone.text_width, len(backbone.text_blocks), backbone.vocabulary, rank=4, scale=1.0
            ).as_update_set()
            for _ in range(3)
        ]
    )
    tame = Tame(backbone.text_width, len(backbone.text_blocks), experts=2, rank=4, top_k=1, scale=1.0).eval()
    tame.add_task()
    tame.add_task()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        _moved(backbone)
        assert pack_text_tower(backbone) is backbone  # whose weights are not laid out for a CPU
        there = updates.to(CUDA)
        _moved(tame)
        conditions: list[TextCondition] = [
            there,
            PerTextCondition(there.choose(torch.tensor([2, 0], device=CUDA))),
        ]
        conditions += [tame.condition([0, 1]), PerTextCondition(tame.condition([1, 0]))]
        for condition in (None, *conditions):
            found = encode_texts(backbone, ids, condition)
            assert found.device == CUDA
            assert found.shape[1:] == (2, backbone.dim)
        frames = torch.zeros(2, 2, backbone.spec.size, backbone.spec.size, 3, dtype=torch.uint8)
        assert {part.device for part in encode_frames(backbone, frames)} == {CUDA}
        with pytest.raises(RuntimeError, match="device"):
            encode_texts(backbone, ids, updates)  # what was left behind is found


@pytest.mark.parametrize(("there", "asked", "found"), [
    (False, "cpu", "cpu"), (True, "cpu", "cpu"), (False, "auto", "cpu"), (True, "auto", "cuda"), (True, "cuda", "cuda"),
])  # fmt: skip
def test_a_device_is_chosen(monkeypatch: pytest.MonkeyPatch, there: bool, asked: str, found: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert compute_device(asked).type == found


@pytest.mark.parametrize(
    ("asked", "why"), [("cuda", "finds no usable one"), ("tpu", "device 'tpu' is unknown")]
)
def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str, why: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=why):
        compute_device(asked)
