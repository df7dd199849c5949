"""Methods on a backbone like ``small``: frozen convolutions, and a text tower whose words attend to later ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbones.small.small_backbone import SmallBackbone
from models.encoders.encoder_registry import open_query_encoder
from models.encoders.tower_forward import encode_frames, encode_texts
from models.encoders.video_encoder import VideoEncoder
from tests.trainer.methods.method_driver import (
    TEXTS,
    InterruptedTraining,
    create_method,
    equal_tensors,
    interrupt_at,
    learn_steps,
    random_frames,
    write_task,
)
from tests.trainer.methods.small_driver import random_small_backbone
from trainer.frozen_prefix_cache import open_video_loader
from trainer.task_data import TaskData, load_frames
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import learn_task

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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bmu_moco", "ctp", "ffa_tame", "strata"])
def test_interrupted_task_resumes_to_the_same_bits_and_is_served(
    name: str, tasks: list[TaskData], tmp_path: Path
) -> None:
    backbone = small_like()
    first = create_method(name, backbone, **TRAINING)
    learn_task(first, tasks[0])
    releases = [first.release()]
    whole = create_method(name, backbone, releases[0], **TRAINING)
    losses = learn_task(whole, tasks[1])
    assert np.isfinite(losses).all()
    releases.append(whole.release())

    store = CheckpointStore(tmp_path / "checkpoints", "run")
    interrupted = create_method(name, backbone, releases[0], **TRAINING)
    with pytest.raises(InterruptedTraining):
        learn_task(interrupted, tasks[1], checkpoints=store, report=interrupt_at(3))
    resumed = create_method(name, backbone, releases[0], **TRAINING)
    assert learn_task(resumed, tasks[1], checkpoints=store) == losses
    assert equal_tensors(resumed.release().tensors, releases[1].tensors)

    pinned = dict(zip(("one", "two"), releases, strict=True))
    encoder = open_query_encoder(backbone, releases[1], pinned)
    encoded = encoder.encode(TEXTS, ["one", "two"], encoder.modes[-1])
    each = encoder.encode_pairs(encoder.tokenize(TEXTS), ["one", "two", "two", "one"], encoder.modes[-1])
    np.testing.assert_allclose(each, encoded[range(4), [0, 1, 1, 0]], atol=1e-5)
    assert not np.allclose(
        encoded[:, 1], encode_texts(backbone, backbone.tokenize(TEXTS))[0].detach(), atol=1e-4
    )
    frames = load_frames(tasks[1].clips)
    videos = VideoEncoder(backbone, {"two": releases[1].fingerprint}, pinned).encode(frames, ["two"])
    np.testing.assert_allclose(videos[:, 0], whole.encode_videos(frames), atol=1e-5)
    assert backbone.compute_fingerprint() == backbone.fingerprint, "the shared network is unchanged"


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
            frames = load.complete(load.read(tasks[0].clips))
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
