"""Independent learners: every task is learned from the backbone alone, and searched with its own encoder.

The comparison shows the gain of a method from earlier tasks; routing evidence of words merges the shards, as for other
methods. A whole tower per task is too large for the service, so these learners exist in benchmarks only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.learning.sequential_learning import SequentialLearner
from benchmarks.rivals import start_method
from models.backbones.backbone import Backbone
from models.encoders.query_encoder import QueryEncoder, QueryEncoderInputs
from models.releases.release_state import ReleaseState
from models.routing.routing_profiles import RoutingProfiles
from trainer.methods import Method
from trainer.task_data import TaskData
from trainer.training_loop import TrainingProgress, learn_task


class IndependentEncoders(QueryEncoder):
    """Query encoder that encodes for each task with the encoder of the task's own learner.

    Args:
        release: A release whose tasks are those of all learners.
        encoders: Query encoder of each learner, in the order of the tasks.
    """

    modes = ("pinned",)

    def __init__(self, backbone: Backbone, release: ReleaseState, encoders: Sequence[QueryEncoder]) -> None:
        super().__init__(QueryEncoderInputs(backbone, release, {}))
        self._encoders = list(encoders)

    def encoding_identity(self, task: str, mode: str) -> str | None:
        return task  # its encoder never changes

    def encode_for_tasks(self, ids: Tensor, positions: Sequence[int], mode: str) -> Tensor:
        chosen = [self._encoders[position] for position in positions]
        return torch.cat([encoder.encode_for_tasks(ids, [0], encoder.modes[-1]) for encoder in chosen])


class IndependentLearner(SequentialLearner):
    """Learns every task as if it were the first one. The interface is that of sequential learning.

    Args:
        backbone: Backbone that the method adapts.
        settings: Settings of the method, over those of its recipe.
        round_vectors: Whether shards are rounded to half precision, as the vector store rounds them.
    """

    def __init__(
        self,
        method_name: str,
        backbone: Backbone,
        settings: Mapping[str, Any],
        *,
        round_vectors: bool = False,
    ) -> None:
        super().__init__(method_name, backbone, settings, round_vectors=round_vectors)
        self._encoders: list[QueryEncoder] = []

    def start_task(self) -> Method:
        """A method that has learned no task. Errors are those of the base class."""
        return start_method(self._method_name, self._backbone, self._settings, None)

    def train(
        self, task: TaskData, *, report: Callable[[TrainingProgress], None] = lambda progress: None
    ) -> list[float]:
        """Train a task from the backbone; the release lists all tasks with their routing profiles.

        Arguments, result and errors are those of the base class.
        """
        method = self.start_task()
        losses = learn_task(method, task, report=report)
        self._encoders.append(method.query_encoder())
        earlier = self.release
        self._complete(method, [task])
        if earlier is not None and self.release is not None:
            profiles = RoutingProfiles.concatenate([earlier.profiles, self.release.profiles])
            self.release = replace(
                self.release, tasks=[*earlier.tasks, *self.release.tasks], profiles=profiles
            )
        return losses

    def query_encoder(self) -> QueryEncoder:
        """Encoders of all learners."""
        if self.release is None:
            raise ValueError("no task was trained")
        return IndependentEncoders(self._backbone, self.release, self._encoders)
