"""Learn in memory: tasks in order, each with a release and a shard.

The learning job does the same, one task at a time, on a published library (:mod:`trainer.task_pipeline`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.rivals import start_method
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import select_query_tensors
from models.encoders.query_encoder import QueryEncoder
from models.releases.release_state import ReleaseState
from trainer.methods import Method
from trainer.task_data import StoredVectors, TaskData, vector_ids
from trainer.training_loop import TrainingProgress, fit, learn_task
from trainer.video_embedding import MemoryShard, embed_clips


class SequentialLearner:
    """Learns tasks one by one and keeps their releases and shards in memory.

    As in the learning job, each task starts from the previous task's release, and the stored vectors of earlier
    training videos are available to the loss.

    Args:
        settings: The method's settings, over those of its recipe.
        round_vectors: Whether to round shards to half precision, as the vector store does.

    Attributes:
        method: Method after the newest task; None before the first task.
        release: Release after the newest task; None before the first task.
        shards: Vectors of each indexed task, by task ID.
        pinned: Release that embedded each indexed task's shard, by task ID.
    """

    def __init__(
        self,
        method_name: str,
        backbone: Backbone,
        settings: Mapping[str, Any],
        *,
        round_vectors: bool = False,
    ) -> None:
        self._method_name, self._backbone, self._settings = method_name, backbone, settings
        self._round_vectors = round_vectors
        self.method: Method | None = None
        self.release: ReleaseState | None = None
        self.tasks: list[TaskData] = []
        self.shards: dict[str, MemoryShard] = {}
        self.pinned: dict[str, ReleaseState] = {}

    def learn(self, tasks: Sequence[TaskData]) -> None:
        """Train and index each task in order."""
        for task in tasks:
            self.train(task)
            self.index(task)

    def start_task(self) -> Method:
        """Create a method that is ready to learn the next task, starting from the newest release.

        Raises:
            MethodError: The settings are invalid, or the method cannot continue the release.
        """
        return start_method(self._method_name, self._backbone, self._settings, self.release)

    def train(
        self, task: TaskData, *, report: Callable[[TrainingProgress], None] = lambda progress: None
    ) -> list[float]:
        """Train the next task, starting from the newest release.

        Returns:
            The mean loss of each epoch; empty if the task has no training captions.

        Raises:
            TrainingDiverged, FramesMissing: See :func:`trainer.training_loop.fit`.
            MethodError: See :meth:`start_task`.
        """
        method = self.start_task()
        memory = StoredVectors(
            [(self.shards[earlier.task_id], vector_ids(earlier.train)) for earlier in self.tasks]
        )
        losses = learn_task(method, task, memory, report=report)
        self._complete(method, [task])
        return losses

    def train_jointly(
        self, tasks: Sequence[TaskData], *, report: Callable[[TrainingProgress], None] = lambda progress: None
    ) -> list[float]:
        """Train the union of all tasks from the backbone, for as many epochs as each task gets alone.

        The number of optimizer steps is thus the sum over the tasks. The release has one routing profile per task.

        Returns:
            The mean loss of each epoch.
        """
        clips = tuple(clip for task in tasks for clip in task.clips)
        union = TaskData("all", "all tasks", clips)
        method = start_method(self._method_name, self._backbone, self._settings, None)
        method.begin_task(union.task_id, union.name)
        losses = fit(method, union, report=report)
        method.end_task(union.pairs)
        for task in tasks:
            method.record_task(task.task_id, task.name, task.training_captions)
        self._complete(method, tasks)
        return losses

    def index(self, task: TaskData) -> MemoryShard:
        """Embed the task's videos with the current video encoder, and pin the shard to the newest release."""
        if self.method is None or self.release is None:
            raise ValueError("no task was trained")
        vectors = embed_clips(self.method.encode_videos, task.clips)
        if self._round_vectors:
            vectors = vectors.astype(np.float16).astype(np.float32)
        shard = MemoryShard(vector_ids(task.clips), vectors)
        self.shards[task.task_id] = shard
        self.pinned[task.task_id] = select_query_tensors(self.release)
        return shard

    def query_encoder(self) -> QueryEncoder:
        """Build the newest release's query encoder over the indexed shards."""
        if self.method is None:
            raise ValueError("no task was trained")
        return self.method.query_encoder(self.pinned)

    def _complete(self, method: Method, tasks: Sequence[TaskData]) -> None:
        self.method, self.release = method, method.release()
        self.tasks += tasks
