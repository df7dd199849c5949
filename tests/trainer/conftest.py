"""Fixtures of the trainer's tests: one thread, an untrained small backbone, and tasks of random frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from models.backbones.backbone import Backbone
from models.backbones.backbone_loading import tiny_backbone
from trainer.task_data import Clip, Split, TaskData

# Tensors are small: a second thread costs more than it saves, above all if other processes run.
torch.set_num_threads(1)

FRAMES, SIDE = 2, 56  # frames per video of the small backbone, and their size in pixels


@pytest.fixture(scope="session")
def small_backbone() -> Backbone:
    """An untrained small backbone with :data:`FRAMES` frames per video; tests must not change it."""
    return untrained_backbone(FRAMES)


@pytest.fixture
def random_task(tmp_path: Path) -> Callable[..., TaskData]:
    """``random_task(name, captions, splits=(), first_id=0)``: a task whose videos are random frames.

    Each element of ``captions`` is the captions of one video; videos without a split in ``splits`` are training videos.
    """

    def make(
        name: str,
        captions: Sequence[Sequence[str]],
        splits: Sequence[Split] = (),
        first_id: int = 0,
    ) -> TaskData:
        clips = []
        for number, texts in enumerate(captions):
            path = tmp_path / f"{name}-{number}.npy"
            rng = np.random.default_rng([*name.encode(), number])
            np.save(path, rng.integers(0, 256, (FRAMES, SIDE, SIDE, 3), dtype=np.uint8))
            split = splits[number] if number < len(splits) else "train"
            clips.append(Clip(f"{name}-{number}", first_id + number, path, tuple(texts), split))
        return TaskData(name, name, tuple(clips))

    return make


def untrained_backbone(frames: int) -> Backbone:
    """A small backbone with the same random weights in every process."""
    torch.manual_seed(0)
    return tiny_backbone(frames)
