"""Prefetching: the videos of the next batch are read while a step computes, with the same results and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from models.backbones.backbone import Backbone
from trainer.batch_prefetching import prefetch_batches
from trainer.errors import FramesMissing
from trainer.frozen_prefix_cache import VideoLoader
from trainer.task_data import Clip, Pair, TaskData, load_frames


@pytest.fixture
def batches(random_task: Callable[..., TaskData]) -> list[list[Pair]]:
    pairs = random_task("task", [[f"video {number}"] for number in range(6)]).pairs
    return [pairs[start : start + 2] for start in (0, 2, 4)]


class _ObservedLoader(VideoLoader):
    """A loader that tells which batches were asked for."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.asked = [threading.Event() for _ in range(3)]

    def read(self, clips: Sequence[Clip]) -> Any:
        self.asked[clips[0].vector_id // 2].set()
        return super().read(clips)


def test_the_next_batch_is_read_before_the_step_ends(backbone: Backbone, batches: list[list[Pair]]) -> None:
    # Read beforehand, because Python before 3.11.8 may fail when two threads read headers of arrays (gh-106905).
    expected = [load_frames([pair.clip for pair in batch]) for batch in batches]
    loader = _ObservedLoader(backbone)
    for number, (batch, frames) in enumerate(prefetch_batches(loader, batches)):
        # The step waits for the reader of the next batch: without overlap, it would wait forever.
        for asked in loader.asked[: number + 2]:
            asked.wait()
        assert batch is batches[number]
        assert frames.equal(expected[number])
        assert not any(asked.is_set() for asked in loader.asked[number + 2 :]), "one batch ahead, not more"


def test_missing_frames_end_the_training_when_their_batch_is_due(
    backbone: Backbone, batches: list[list[Pair]]
) -> None:
    batches[1][0].clip.frames_path.unlink()
    loaded = prefetch_batches(VideoLoader(backbone), batches)
    assert next(loaded)[0] is batches[0]
    with pytest.raises(FramesMissing, match="task-2"):
        next(loaded)
