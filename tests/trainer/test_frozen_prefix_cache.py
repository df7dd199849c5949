"""Frozen-prefix cache: frozen blocks run once per video, and training results are unchanged."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.rivals import METHODS, start_method
from models.backbones.backbone import Backbone
from models.backbones.tower_computation import mixed_precision
from models.encoders.tower_forward import encode_frames, run_first_blocks
from trainer.errors import FramesMissing
from trainer.frozen_prefix_cache import VideoLoader, open_video_loader
from trainer.methods import Method
from trainer.methods.ffa_tame import FfaTame
from trainer.task_data import Clip, TaskData, load_frames
from trainer.training_checkpoint import CheckpointStore
from trainer.training_loop import TrainingProgress, learn_task

FRAMES, SIDE, DEPTH, VIDEOS, CAPTIONS = 2, 56, 4, 5, 2
SETTINGS: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 4,
    "experts": 2,
    "rank": 2,
    "dropout": 0.2,
    "ffa_layers": 2,
    "precision": "float32",
}
TOKENS = FRAMES * (1 + (SIDE // 8) ** 2) * 128 * 4  # bytes of a video


@pytest.fixture
def task(random_task: Callable[..., TaskData]) -> TaskData:
    return random_task("task", [[f"video {n} in words {c}" for c in range(CAPTIONS)] for n in range(VIDEOS)])


@pytest.fixture
def runs(backbone: Backbone) -> Iterator[Counter[int]]:
    """Number of videos that passed each block of the image tower."""
    seen: Counter[int] = Counter()
    handles = [
        block.ln_1.register_forward_pre_hook(
            lambda _, given, index=index: seen.update({index: len(given[0])})
        )
        for index, block in enumerate(backbone.visual_blocks)
    ]
    yield seen
    for handle in handles:
        handle.remove()


def _start(backbone: Backbone, **settings: Any) -> Method:
    return start_method("ffa_tame", backbone, {**SETTINGS, **settings}, None)


def _learned(
    backbone: Backbone, task: TaskData, *, checkpoints: CheckpointStore | None = None, **settings: Any
) -> Method:
    method = _start(backbone, **settings)
    learn_task(method, task, checkpoints=checkpoints)
    return method


def _same(one: Method, other: Method) -> bool:
    tensors = other.state_dict()
    return all(tensor.equal(tensors[name]) for name, tensor in one.state_dict().items())


# -- the blocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [False, True])
def test_first_blocks_compute_the_input_of_the_next_block(
    backbone: Backbone, task: TaskData, *, mixed: bool
) -> None:
    frames = load_frames(task.clips)
    read: list[Tensor] = []
    handles = [
        block.ln_1.register_forward_pre_hook(lambda _, given: read.append(given[0]))
        for block in backbone.visual_blocks
    ]
    with mixed_precision(enabled=mixed), torch.no_grad():
        videos, each = encode_frames(backbone, frames)
        expected, read = read, []
        for count in range(1, DEPTH):
            tokens = run_first_blocks(backbone, frames, count)
            assert tokens.dtype == expected[count].dtype
            assert tokens.equal(expected[count])
        for handle in handles:
            handle.remove()
        assert run_first_blocks(backbone, frames, DEPTH).shape == (VIDEOS, FRAMES, 1, 128)
        for count in range(1, DEPTH + 1):
            tokens = run_first_blocks(backbone, frames, count)
            assert encode_frames(backbone, tokens, first_block=count)[0].equal(videos)
            assert encode_frames(backbone, tokens, first_block=count)[1].equal(each)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_cached_tokens_give_the_loss_and_gradients_of_frames(
    backbone: Backbone, task: TaskData, layers: int, runs: Counter[int], *, mixed: bool
) -> None:
    method = _start(backbone, ffa_layers=layers, dropout=0.0)
    method.begin_task("task", "task")
    assert isinstance(method, FfaTame)
    for gate in method.fusion.gates():
        gate.data.fill_(0.3)
    texts = [clip.captions[0] for clip in task.clips]
    parameters = [p for group in method.parameter_groups() for p in group["params"]]
    results = []
    with mixed_precision(enabled=mixed), open_video_loader(method, None) as load:
        list(load.load([task.clips]))  # fills the cache, which is read below
        for videos in (load_frames(task.clips), *load.load([task.clips])):
            runs.clear()
            loss = method.loss(videos, texts, None)
            results.append([loss, *torch.autograd.grad(loss, parameters)])
    assert [runs[block] for block in range(DEPTH)] == [0] * (DEPTH - layers) + [VIDEOS] * layers
    assert any(gradient.abs().max() > 0 for gradient in results[0][1:])
    # Some gradients consist of rounding errors: that of a key bias is zero in exact arithmetic, since softmax ignores
    # a constant, and that of a gate is a sum whose terms cancel. Such errors scale with the largest gradient.
    relative, rounding = (0.1, 1e-2) if mixed else (1e-4, 1e-6)
    largest = max(float(gradient.abs().max()) for gradient in results[0][1:])
    for expected, gradient in zip(*results, strict=True):
        tolerance = relative * float(expected.detach().abs().max()) + rounding * largest
        torch.testing.assert_close(gradient, expected, rtol=0, atol=tolerance)


# -- a whole task -------------------------------------------------------------------------------------------


def test_frozen_blocks_run_once_per_video(backbone: Backbone, task: TaskData, runs: Counter[int]) -> None:
    losses = learn_task(_start(backbone), task)
    measured = 1  # a pair, whose memory the loop measures
    every = SETTINGS["epochs"] * VIDEOS * CAPTIONS + measured
    assert [runs[block] for block in range(DEPTH)] == [VIDEOS, VIDEOS, every, every]
    runs.clear()
    assert learn_task(_start(backbone, feature_cache_bytes=0), task) == pytest.approx(losses, rel=1e-3)
    assert [runs[block] for block in range(DEPTH)] == [every] * DEPTH


def test_cache_leaves_half_of_the_disk_free(
    backbone: Backbone, task: TaskData, runs: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(Path.cwd())
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=2 * TOKENS))
    _learned(backbone, task, epochs=1)
    assert runs[0] == 1 + (VIDEOS - 1) * CAPTIONS


def _fail_with_full_disk(*given: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "fails"),
    [
        ("pwrite", _fail_with_full_disk),
        ("pwrite", lambda file, data, offset: len(bytes(data)) // 2),
        ("preadv", lambda file, buffers, offset: buffers[0].nbytes - 1),
    ],
    ids=["full", "cut short", "damaged"],
)
def test_tokens_that_cannot_be_stored_or_read_are_computed_again(
    backbone: Backbone,
    task: TaskData,
    runs: Counter[int],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    fails: Callable[..., int],
) -> None:
    whole = _learned(backbone, task)
    runs.clear()
    monkeypatch.setattr(os, call, fails)
    assert _same(_learned(backbone, task), whole)
    assert runs[0] == SETTINGS["epochs"] * VIDEOS * CAPTIONS


def test_missing_frames_of_a_cached_video_end_training(backbone: Backbone, task: TaskData) -> None:
    """A deleted video must not be learned from any longer."""

    def delete(progress: TrainingProgress) -> None:
        if progress.epoch == 2:
            task.clips[3].frames_path.unlink(missing_ok=True)

    with pytest.raises(FramesMissing, match="video 'task-3'"):
        learn_task(_start(backbone), task, report=delete)


# -- reading ahead ------------------------------------------------------------------------------------------


def test_the_next_step_is_read_before_the_current_one_ends(
    backbone: Backbone, task: TaskData, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [task.clips[:1], task.clips[1:2], task.clips[2:3]]
    # Read beforehand, because Python before 3.11.8 may fail when two threads read headers of arrays (gh-106905).
    expected = [load_frames(clips) for clips in steps]
    asked = [threading.Event() for _ in steps]

    def read(self: VideoLoader, clips: Sequence[Clip]) -> Tensor:
        asked[steps.index(clips)].set()
        return load_frames(clips)

    monkeypatch.setattr(VideoLoader, "_read", read)
    with open_video_loader(_start(backbone, feature_cache_bytes=0), None) as loader:
        for number, frames in enumerate(loader.load(steps)):
            # The step waits for the reader of the next one: without overlap, it would wait forever.
            for event in asked[: number + 2]:
                event.wait()
            assert frames.equal(expected[number])
            assert not any(event.is_set() for event in asked[number + 2 :]), "one step ahead, not more"


def test_missing_frames_end_the_training_when_their_step_is_due(backbone: Backbone, task: TaskData) -> None:
    task.clips[1].frames_path.unlink()
    with open_video_loader(_start(backbone, feature_cache_bytes=0), None) as loader:
        videos = loader.load([task.clips[:1], task.clips[1:2]])
        assert len(next(videos)) == 1
        with pytest.raises(FramesMissing, match="task-1"):
            next(videos)


# -- methods ------------------------------------------------------------------------------------------------


def test_methods_without_frozen_blocks_load_frames(backbone: Backbone) -> None:
    for name in METHODS:
        method = start_method(name, backbone, {}, None)
        assert method.frozen_image_block_count == 0, name
        with open_video_loader(method, None) as load:
            assert type(load) is VideoLoader


@pytest.mark.parametrize("layers", range(DEPTH + 2))
def test_blocks_below_all_gradients_are_frozen(backbone: Backbone, task: TaskData, layers: int) -> None:
    method = _start(backbone, ffa_layers=layers)
    assert isinstance(method, FfaTame)
    method.begin_task("task", "task")
    needed: list[bool] = []
    handles = [
        block.ln_1.register_forward_pre_hook(lambda _, given: needed.append(given[0].requires_grad))
        for block in backbone.visual_blocks
    ]
    videos, _ = encode_frames(backbone, load_frames(task.clips[:1]), method.fusion)
    for handle in handles:
        handle.remove()
    leaving = [*needed[1:], videos.requires_grad]
    assert method.frozen_image_block_count == leaving.count(False)
