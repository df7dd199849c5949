"""Shards of all tasks of a protocol, in memory: the input of every merging rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks.errors import ProtocolError
from models.backbones.backbone import Backbone
from models.encoders.query_encoder import QueryEncoder
from trainer.methods import METHODS
from trainer.sequential_learning import SequentialLearner
from trainer.task_data import TaskData
from trainer.video_embedding import embed_clips

__all__ = ["FrameEncoder", "LearnedShards", "learn_shards"]

Vectors = npt.NDArray[np.float32]


@runtime_checkable
class FrameEncoder(Protocol):
    """Optional interface of a method: one vector per frame, for late interaction."""

    def encode_frames(self, frames: Tensor) -> Tensor:
        """Unit vectors ``[n, M, dim]`` of ``uint8 [n, M, H, W, 3]``."""
        ...


@dataclass(frozen=True)
class LearnedShards:
    """State after the last task of a sequence.

    Attributes:
        tasks: Tasks in the order of learning.
        encoder: Query encoder over all shards.
        profiles: Routing profiles ``[T, V]``.
        videos: Video vectors ``[n, dim]`` per task, in the order of its clips.
        frames: Frame vectors ``[n, M, dim]`` per task; None if the method has no frame vectors.
        settings: Validated settings of the method.
    """

    tasks: Sequence[TaskData]
    encoder: QueryEncoder
    profiles: Vectors
    videos: Sequence[Vectors]
    frames: Sequence[Vectors] | None
    settings: Mapping[str, Any] = field(default_factory=dict)


def learn_shards(
    method_name: str,
    backbone: Backbone,
    tasks: Sequence[TaskData],
    settings: Mapping[str, Any],
    report: Callable[[str], None] = lambda line: None,
) -> LearnedShards:
    """Learn the tasks in order and embed the videos of each task once.

    Args:
        method_name: Name of the method.
        backbone: Backbone that the method adapts.
        tasks: Tasks with their frames.
        settings: Settings of the method, over those of its recipe.
        report: Called with one line per finished task.

    Raises:
        ProtocolError: The method embeds all videos again with one encoder, or a task has no training captions.
    """
    if METHODS[method_name].requires_all_videos:
        raise ProtocolError(
            f"{method_name} embeds all videos with one encoder, so there are no shards to merge"
        )
    for task in tasks:
        if not task.training_captions:
            raise ProtocolError(f"task {task.task_id} has no training captions, which calibration requires")
    learner = SequentialLearner(method_name, backbone, settings)
    videos: list[Vectors] = []
    frames: list[Vectors] = []
    for number, task in enumerate(tasks, 1):
        learner.train(task)
        shard = learner.index(task)
        videos.append(shard.vectors(shard.ids))
        if isinstance(learner.method, FrameEncoder):
            frames.append(embed_clips(learner.method.encode_frames, task.clips))
        report(f"task {number} of {len(tasks)} ({task.name}) is learned")
    assert learner.method is not None
    return LearnedShards(
        tasks=tasks,
        encoder=learner.query_encoder(),
        profiles=learner.method.profiles.to_dense(),
        videos=videos,
        frames=frames or None,
        settings=learner.method.config.model_dump(mode="json"),
    )
