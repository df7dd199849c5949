"""A batch of queries waits for its device once, and its vectors are those of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from models.backbones.frozen_tower import FrozenTower
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from tests.models.encoders.simulated_device import DEVICE, DeviceTensor, SimulatedDevice
from tests.models.encoders.small_releases import low_rank_release, small_release, tame_release
from tests.trainer.methods.small_driver import random_small_backbone

TEXTS = ["a star", "two stars spin around a red circle", "the ring bounces until it is gone"]
TASKS = ["0", "2", "1", "0"]


def _releases(backbone: Backbone) -> dict[str, ReleaseState]:
    torch.manual_seed(1)
    return {
        "frozen": small_release(backbone, "frozen", {}),
        "tame": tame_release(backbone, bare_first=True),
        "low_rank": low_rank_release(backbone, 20),
        "tower": small_release(backbone, "tower", backbone.clone().tensors()),
    }


def _encode(encoder: QueryEncoder) -> np.ndarray:
    """Encode one batch of searches, whose texts have different lengths."""
    tokens = encoder.tokenize(TEXTS)
    return encoder.encode_pairs([*tokens, tokens[2]], TASKS, encoder.modes[-1])


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")  # the simulation does copy
@pytest.mark.parametrize("kind", ["frozen", "tame", "low_rank", "tower"])
@pytest.mark.parametrize("make", [lambda: tiny_backbone(2), random_small_backbone], ids=["clip", "bert"])
def test_a_batch_of_queries_waits_once(
    make: Callable[[], Backbone], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrozenTower, "engine", lambda self: None)  # on the CPU, it rounds weights
    torch.manual_seed(0)
    backbone = make()
    release = _releases(backbone)[kind]
    expected = _encode(open_query_encoder(copy.deepcopy(backbone), release, dict.fromkeys("012", release)))
    with torch.inference_mode(), SimulatedDevice() as device:
        backbone.to(DEVICE)
        encoder = open_query_encoder(backbone, release, dict.fromkeys("012", release))
        device.waits.clear()
        found = _encode(encoder)
    assert len(device.waits) == 1, device.waits
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_simulation_records_each_kind_of_wait() -> None:
    with torch.inference_mode(), SimulatedDevice() as device:
        x = DeviceTensor(torch.arange(3))
        y = torch.ones(3).to(DEVICE, non_blocking=True) + x
        assert device.waits == []
        assert isinstance(y, DeviceTensor)
        y.to(DEVICE)
        torch.zeros(2, device=DEVICE).add_(1)
        assert device.waits == []
        waiting: list[Callable[[], object]] = [
            lambda: torch.ones(3).to(DEVICE),
            y.cpu,
            y[0].item,
            lambda: bool((y > 0).all()),
            lambda: torch.equal(y, y),
            y.nonzero,
            lambda: y[y > 1],
        ]
        for number, wait in enumerate(waiting, 1):
            wait()
            assert len(device.waits) == number
