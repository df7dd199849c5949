"""Towers and conditions compute on one device.

Without a GPU, fake tensors of torch replace it: they have shapes and devices, and raise errors if devices are mixed.
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
from models.encoders.tower_forward import PerTextCondition, TextCondition, encode_frames, encode_texts

CUDA = torch.device("cuda", 0)


def _move_to_cuda(module: nn.Module) -> None:
    """Replace ``Module.to``, which fake tensors do not support."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            part.register_parameter(name, nn.Parameter(torch.empty_like(parameter, device=CUDA), False))
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, torch.empty_like(buffer, device=CUDA))


@pytest.mark.slow
def test_towers_compute_on_their_device() -> None:
    backbone = tiny_backbone(frames=2)
    backbone = backbone.with_text_blocks(backbone.text_blocks[:2])  # fake tensors are slow
    ids = backbone.tokenize(["a red star spins", "left"])
    updates = TextUpdateSet.stack(
        [TextUpdate.for_backbone(backbone, rank=4, scale=1.0).as_update_set() for _ in range(3)]
    )
    tame = Tame(backbone.text_width, len(backbone.text_blocks), experts=2, rank=4, top_k=1, scale=1.0).eval()
    tame.add_task()
    tame.add_task()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        _move_to_cuda(backbone)
        assert pack_text_tower(backbone) is backbone  # packed weights are for CPUs only
        cuda_updates = updates.to(CUDA)
        _move_to_cuda(tame)
        conditions: list[TextCondition] = [
            cuda_updates,
            PerTextCondition(cuda_updates.choose(torch.tensor([2, 0], device=CUDA))),
        ]
        conditions += [tame.condition([0, 1]), PerTextCondition(tame.condition([1, 0]))]
        for condition in (None, *conditions):
            found = encode_texts(backbone, ids, condition)
            assert found.device == CUDA
            assert found.shape[1:] == (2, backbone.dim)
        frames = torch.zeros(2, 2, backbone.spec.size, backbone.spec.size, 3, dtype=torch.uint8)
        assert {part.device for part in encode_frames(backbone, frames)} == {CUDA}
        with pytest.raises(RuntimeError, match="device"):
            encode_texts(backbone, ids, updates)  # these updates are on the CPU
