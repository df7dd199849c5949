"""CTP + ER: the composition of its two parts."""

from __future__ import annotations

import pytest
import torch

from models.backbones.backbone import Backbone
from tests.trainer.methods.method_driver import (
    create_method,
    learn_steps,
    random_frames,
    replay_method,
    scale_projections,
)

TEXTS = ["a red circle moves left", "a square vanishes", "two stars spin"]


@pytest.mark.parametrize("masked_language", [False, True])
def test_loss_of_ctp_er_is_equation_10_over_the_union(backbone: Backbone, masked_language: bool) -> None:
    replay = replay_method("ctp_er", backbone, fill="reservoir", masked_language=masked_language)
    plain = create_method("ctp", backbone, masked_language=masked_language)
    for method in (replay, plain):
        torch.manual_seed(1)
        learn_steps(method, "one", range(1))
        method.begin_task("two", "two")
        scale_projections(method.model, seed=8)
    frames = random_frames(1, 3)
    with torch.no_grad():
        torch.manual_seed(2)
        loss = float(replay.loss(frames, TEXTS, None))
        torch.manual_seed(2)
        past = replay.memory.sample(3, before=1)
        ids = torch.cat([replay.tokenize(TEXTS), past["ids"]])
        expected = float(plain.pair_loss(torch.cat([frames, past["frames"]]), ids[:, : ids.any(dim=0).sum()]))
    assert len(ids) == 6
    assert loss == pytest.approx(expected, rel=1e-5)
