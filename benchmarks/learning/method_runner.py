"""One benchmark run: a method learns the tasks of a protocol with one seed and is evaluated after each task.

Training, indexing and evaluation are the same as in the learning job, without the service. A method that requires the
videos of all tasks (joint training) is trained once on the union of all tasks instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.learning.labeled_pairs import fused_pair_precisions
from benchmarks.learning.resource_meter import ResourceMeter
from benchmarks.learning.run_results import to_json_value
from models.backbones.backbone import Backbone
from models.routing.defaults import DEFAULT_PRIOR
from trainer.evaluation.forward_transfer import recall_before_learning
from trainer.evaluation.gallery import Gallery, Query, task_gallery
from trainer.evaluation.mode_evaluation import QueryMemory
from trainer.evaluation.rank_ledger import RankLedger
from trainer.evaluation.recall_row import evaluate_row
from trainer.methods import METHODS
from trainer.sequential_learning import SequentialLearner
from trainer.task_data import TaskData
from trainer.training_loop import TrainingProgress

__all__ = ["RunOutcome", "run_method"]

QuerySelection = Literal["first", "all"]


@dataclass
class RunOutcome:
    """Measurements of a run; the fields are those of :class:`benchmarks.learning.run_results.RunResult`."""

    settings: dict[str, Any]
    meter: ResourceMeter
    rows: list[dict[str, Any] | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    before: list[dict[str, Any] | None] = field(default_factory=list)


def run_method(
    name: str,
    backbone: Backbone,
    tasks: Sequence[TaskData],
    *,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    prior: float = DEFAULT_PRIOR,
    reindex: bool = False,
    jointly: bool = False,
    mixed_batches: bool = True,
    queries: QuerySelection = "first",
    report: Callable[[str], None] = lambda line: None,
) -> RunOutcome:
    """Learn the tasks in order with one method, and evaluate after each task.

    Args:
        name: Name of the method.
        backbone: Backbone that the method adapts.
        tasks: Tasks with their frames.
        seed: Seed of the method.
        settings: Settings of the method, over those of its recipe.
        prior: Routing prior in the global gallery; 0 merges raw cosines.
        reindex: Whether the videos of all tasks are embedded again after every task with the current encoder.
        jointly: Whether the method learns the union of all tasks at once.
        mixed_batches: Whether the batches of joint training have videos of all tasks.
        queries: Captions of a held-out video that are used as queries: the first one or all.
        report: Called with one line per finished task.
    """
    run = _MethodRun(
        name, backbone, tasks, {**(settings or {}), "seed": seed}, prior, reindex, queries, report
    )
    if jointly or METHODS[name].requires_all_videos:
        run.learn_jointly(mixed_batches)
    else:
        run.learn_in_sequence()
    return run.outcome


class _MethodRun:
    """State between the tasks of a run: the learner, the galleries and the reused evaluation results."""

    def __init__(
        self,
        name: str,
        backbone: Backbone,
        tasks: Sequence[TaskData],
        settings: Mapping[str, Any],
        prior: float,
        reindex: bool,
        queries: QuerySelection,
        report: Callable[[str], None],
    ) -> None:
        self._learner = SequentialLearner(name, backbone, settings)
        self._tasks, self._prior, self._reindex, self._report = tasks, prior, reindex, report
        self._captions = 1 if queries == "first" else None
        self._galleries: list[Gallery] = []
        self._query_memory: QueryMemory = {}
        self._served_ledger: RankLedger = {}
        self._full_ledger: RankLedger = {}
        self._meter = ResourceMeter(backbone.device)
        self.outcome = RunOutcome({}, self._meter)

    def learn_in_sequence(self) -> None:
        for number, task in enumerate(self._tasks, 1):
            self._measure_forward_transfer(task)
            steps: list[TrainingProgress] = []
            with self._meter.phase("training"):
                losses = self._learner.train(task, report=steps.append)
            self._record_training(len(steps), losses)
            self._index([task])
            self._evaluate()
            self._report(f"task {number} of {len(self._tasks)} ({task.name}) in {self._last_seconds():.0f} s")

    def learn_jointly(self, mixed_batches: bool) -> None:
        steps: list[TrainingProgress] = []
        with self._meter.phase("training"):
            losses = self._learner.train_jointly(
                self._tasks, mixed_batches=mixed_batches, report=steps.append
            )
        self._record_training(len(steps), losses)
        self._index(self._tasks)
        self.outcome.rows += [None] * (
            len(self._tasks) - 1
        )  # joint training has no release between the tasks
        self.outcome.before += [None] * len(self._tasks)
        self._evaluate()
        self._report(f"all {len(self._tasks)} tasks at once in {self._last_seconds():.0f} s")

    def _measure_forward_transfer(self, task: TaskData) -> None:
        """Evaluate the release before a task on the queries of the task."""
        if self._learner.method is None:
            self.outcome.before.append(None)
            return
        with self._meter.phase("transfer"):
            queries = [
                Query(text, clip.vector_id) for clip in task.test for text in clip.captions[: self._captions]
            ]
            recall = recall_before_learning(
                self._learner.query_encoder(),
                self._galleries[-1].task,
                self._learner.method.encode_videos,
                task.test,
                queries,
            )
        self.outcome.before.append(to_json_value(recall))

    def _record_training(self, steps: int, losses: list[float]) -> None:
        assert self._learner.method is not None
        self.outcome.settings = self._learner.method.config.model_dump(mode="json")
        self.outcome.steps.append(steps)
        self.outcome.losses.append(losses)

    def _index(self, tasks: Sequence[TaskData]) -> None:
        """Embed the videos of these tasks or, with ``reindex``, those of all trained tasks."""
        with self._meter.phase("indexing"):
            if self._reindex:
                self._learner.reindex()
                self._galleries = [self._gallery(task) for task in self._learner.tasks]
                return
            for task in tasks:
                self._learner.index(task)
                self._galleries.append(self._gallery(task))

    def _gallery(self, task: TaskData) -> Gallery:
        return task_gallery(task, self._learner.shards[task.task_id], self._captions)

    def _evaluate(self) -> None:
        """Evaluate as the learning job does, to measure its cost, and then with all research measures."""
        assert self._learner.method is not None
        profiles = self._learner.method.profiles.to_dense()
        with self._meter.phase("evaluation"):
            encoder = self._learner.query_encoder()
            # Pinned encoders do not match shards that were embedded again.
            modes = ("latest",) if self._reindex else encoder.modes
            evaluate_row(
                encoder,
                self._galleries,
                profiles,
                prior=self._prior,
                modes=modes[-1:],  # the default mode of a search
                full=False,
                ledger=self._served_ledger,
            )
        with self._meter.phase("research"):
            row = evaluate_row(
                encoder,
                self._galleries,
                profiles,
                prior=self._prior,
                modes=modes,
                memory=self._query_memory,
                ledger=self._full_ledger,
            )
            pair_map = fused_pair_precisions(self._learner.method, self._learner.tasks)
        self.outcome.rows.append(
            to_json_value(row) | ({"pair_map": to_json_value(pair_map)} if pair_map else {})
        )

    def _last_seconds(self) -> float:
        return sum(durations[-1] for durations in self._meter.seconds.values())
