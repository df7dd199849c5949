"""Methods on a backbone like ``small``: frozen convolutions, and a text tower whose words attend to later ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbones.small.small_backbone import SmallBackbone
from models.encoders.tower_forward import encode_frames
from tests.trainer.methods.method_driver import TEXTS, create_method, learn_steps, random_frames, write_task
from tests.trainer.methods.small_driver import random_small_backbone
from trainer.frozen_prefix_cache import open_video_loader
from trainer.task_data import TaskData

NAMES = ("bmu_moco", "ccmr", "ctp", "ffa_tame", "finetune", "joint", "strata")
TRAINING = {"epochs": 2, "batch_size": 2, "learning_rate": 1e-3}


@cache
def small_like() -> SmallBackbone:
    return random_small_backbone()


@pytest.fixture
def tasks(tmp_path: Path) -> list[TaskData]:
    return [
        write_task(tmp_path, name, [[f"{text} {name}"] for text in TEXTS], ["val"]) for name in ("one", "two")
    ]


@pytest.mark.parametrize("name", NAMES)
def test_untrained_method_equals_the_backbone(name: str) -> None:
    method = create_method(name, small_like())
    frames = random_frames(0)
    assert torch.equal(method.encode_videos(frames), encode_frames(small_like(), frames)[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_cached_tokens_equals_one_on_frames(
    name: str, tasks: list[TaskData], tmp_path: Path
) -> None:
    """The network runs once per video and task; all epochs read its tokens."""
    losses = []
    for is_cached in (False, True):
        method = create_method(name, small_like(), feature_cache_bytes=10**9 if is_cached else 0)
        method.begin_task("one", "one")
        with open_video_loader(method, tmp_path) as load, torch.random.fork_rng():
            torch.manual_seed(0)
            (frames,) = load.load([tasks[0].clips])
            assert frames.dim() == (4 if is_cached else 5)
            losses.append(float(method.loss(frames, TEXTS, None).detach()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("name", ["ffa_tame", "strata"])
def test_adapted_text_does_not_depend_on_padding(name: str) -> None:
    method = create_method(name, small_like(), learning_rate=0.5)
    learn_steps(method, "one", range(3))
    encoder = method.query_encoder()
    texts = ["a star", "two stars spin around a very large red circle until it is gone"]
    together = encoder.encode(texts, ["one"])
    alone = encoder.encode(texts[:1], ["one"])
    np.testing.assert_allclose(together[:1], alone, atol=1e-5)
