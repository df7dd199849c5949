"""Low-rank updates of an image tower."""

from __future__ import annotations

import pytest
import torch

from models.adapters.low_rank_image_tower import LowRankImageTower, LowRankUpdate
from models.backbones.backbone import Backbone
from models.encoders.tower_forward import encode_frames


def _frames() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (2, 2, 56, 56, 3), dtype=torch.uint8, generator=generator)


def test_an_update_adds_scaled_ba_to_every_entry() -> None:
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


def test_it_starts_as_the_tower_that_it_wraps(backbone: Backbone) -> None:
    tower = LowRankImageTower(backbone, rank=4, scale=1.0)
    torch.testing.assert_close(
        encode_frames(tower.backbone, _frames())[0], encode_frames(backbone, _frames())[0]
    )


def test_every_matrix_of_every_block_is_reached_and_nothing_else_is_trained(backbone: Backbone) -> None:
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
    encode_frames(tower.backbone, _frames())[0].sum().backward()
    assert all(update.grad is not None for update in tower.update_parameters())
    assert not any(p.requires_grad or p.grad is not None for p in backbone.parameters())


def test_what_it_gives_another_takes_over(backbone: Backbone) -> None:
    first, second = (LowRankImageTower(backbone, rank=4, scale=1.0) for _ in range(2))
    for update in first.update_parameters():
        torch.nn.init.normal_(update, std=0.1)
    assert not torch.equal(
        encode_frames(first.backbone, _frames())[0], encode_frames(second.backbone, _frames())[0]
    )
    second.load_tensors(first.tensors())
    assert torch.equal(
        encode_frames(first.backbone, _frames())[0], encode_frames(second.backbone, _frames())[0]
    )
    with pytest.raises(KeyError):
        second.load_tensors({})
