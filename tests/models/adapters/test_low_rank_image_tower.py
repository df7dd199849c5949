"""Low-rank updates to an image tower: values, trainable parameters and tensors."""

from __future__ import annotations

import pytest
import torch

from models.adapters.low_rank_image_tower import LowRankImageTower, LowRankUpdate
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames
from tests.random_frames import random_frames


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
    assert not torch.equal(
        encode_frames(first.backbone, random_frames(1))[0],
        encode_frames(second.backbone, random_frames(1))[0],
    )
    second.load_tensors(first.tensors())
    assert torch.equal(
        encode_frames(first.backbone, random_frames(1))[0],
        encode_frames(second.backbone, random_frames(1))[0],
    )
    with pytest.raises(KeyError):
        second.load_tensors({})
