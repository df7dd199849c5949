"""One method, one seed: a sequence of tasks is learned, laid down in memory, and measured after each.

Everything happens as in the worker, without the service. A method that revisits old videos (joint training)
learns the union of all tasks at once instead, afresh, with the sum of all tasks' steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.learning.resource_meter import ResourceMeter
from benchmarks.learning.run_results import to_json_value
from models.backbones.backbone import Backbone
from models.encoders.encoder_registry import select_query_tensors
from models.releases.release_state import ReleaseState
from models.routing.defaults import DEFAULT_PRIOR
from trainer.evaluation.forward_transfer import recall_before_learning
from trainer.evaluation.gallery import Gallery, Query, reindex, task_gallery
from trainer.evaluation.mode_evaluation import QueryMemory
from trainer.evaluation.rank_ledger import RankLedger
from trainer.evaluation.recall_row import evaluate_row
from trainer.methods import METHODS, Method, start_method
from trainer.task_data import Clip, StoredVectors, TaskData
from trainer.training_loop import TrainingProgress, fit, learn_task
from trainer.video_embedding import MemoryShard, embed_clips

__all__ = ["RunOutcome", "run_method"]

Queries = Literal["first", "all"]
Report = Callable[[str], None]


@dataclass
class RunOutcome:
    """What a run measured; fields as in :class:`benchmarks.learning.run_results.RunResult`."""

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
    queries: Queries = "first",
    report: Report = lambda line: None,
) -> RunOutcome:
    """Learn the tasks in order with one method, and measure after each.

    Args:
        settings: of the method, over those of its recipe.
        prior: of routing in the union gallery; 0 merges raw cosines.
        reindex: after every task, embed the videos of all tasks again with the current encoder.
        queries: the first caption of a held-out video, or each.
        report: called with a line about every task that is done.
    """
    run = _Run(name, backbone, tasks, {**(settings or {}), "seed": seed}, prior, reindex, queries, report)
    if METHODS[name].requires_all_videos:
        run.learn_together()
    else:
        run.learn_in_sequence()
    return run.outcome


class _Run:
    """The state between tasks: the newest release, and what has been laid down."""

    def __init__(
        self,
        name: str,
        backbone: Backbone,
        tasks: Sequence[TaskData],
        settings: Mapping[str, Any],
        prior: float,
        reindex: bool,
        queries: Queries,
        report: Report,
    ) -> None:
        self._name, self._backbone, self._tasks, self._settings = name, backbone, tasks, settings
        self._prior, self._reindex, self._report = prior, reindex, report
        self._captions = 1 if queries == "first" else None
        self._galleries: list[Gallery] = []
        self._pinned: dict[str, ReleaseState] = {}
        self._memory: QueryMemory = {}
        self._served: RankLedger = {}
        self._ledger: RankLedger = {}
        self._meter = ResourceMeter(backbone.device)
        self.outcome = RunOutcome({}, self._meter)

    def learn_in_sequence(self) -> None:
        previous: Method | None = None
        release: ReleaseState | None = None
        for number, task in enumerate(self._tasks, 1):
            self._foresee(previous, task)
            with self._meter.phase("training"):
                trained = zip(self._galleries, self._tasks, strict=False)
                memory = StoredVectors([(gallery.shard, _ids(earlier.train)) for gallery, earlier in trained])
                method = start_method(self._name, self._backbone, self._settings, release)
                steps = _Steps()
                losses = learn_task(method, task, memory, report=steps)
                release = method.release()
            self._note(method, steps.count, losses)
            self._lay_down(method, release, self._tasks[number - 1 : number])
            self._measure(method)
            previous = method
            seconds = sum(spent[-1] for spent in self._meter.seconds.values())
            self._report(f"task {number} of {len(self._tasks)} ({task.name}) in {seconds:.0f} s")

    def learn_together(self) -> None:
        """As many epochs as each task gets alone: that makes the sum of all tasks' steps."""
        union = TaskData("all", "all tasks", tuple(clip for task in self._tasks for clip in task.clips))
        with self._meter.phase("training"):
            method = start_method(self._name, self._backbone, self._settings, None)
            method.begin_task(union.task_id, union.name)
            steps = _Steps()
            losses = fit(method, union, report=steps)
            method.end_task(union.pairs)
            for task in self._tasks:
                method.record_task(task.task_id, task.name, task.training_captions)
            release = method.release()
        self._note(method, steps.count, losses)
        self._lay_down(method, release, self._tasks)
        self.outcome.rows += [None] * (len(self._tasks) - 1)  # there is no release between the tasks
        self.outcome.before += [None] * len(self._tasks)
        self._measure(method)
        seconds = sum(spent[-1] for spent in self._meter.seconds.values())
        self._report(f"all {len(self._tasks)} tasks at once in {seconds:.0f} s")

    def _foresee(self, previous: Method | None, task: TaskData) -> None:
        """How well the release before a task finds its videos."""
        if previous is None:
            self.outcome.before.append(None)
            return
        with self._meter.phase("transfer"):
            queries = [
                Query(text, clip.vector_id) for clip in task.test for text in clip.captions[: self._captions]
            ]
            newest = self._galleries[-1].task
            encoder = previous.query_encoder(self._pinned)
            found = recall_before_learning(encoder, newest, previous.encode_videos, task.test, queries)
        self.outcome.before.append(to_json_value(found))

    def _note(self, method: Method, steps: int, losses: list[float]) -> None:
        self.outcome.settings = method.config.model_dump(mode="json")
        self.outcome.steps.append(steps)
        self.outcome.losses.append(losses)

    def _lay_down(self, method: Method, release: ReleaseState, tasks: Sequence[TaskData]) -> None:
        """Embed the videos of these tasks, or those of all learned tasks again."""
        self._pinned |= dict.fromkeys((task.task_id for task in tasks), select_query_tensors(release))
        with self._meter.phase("indexing"):
            if self._reindex:
                learned = self._tasks[: len(self._galleries) + len(tasks)]
                self._galleries = reindex(method.encode_videos, learned, self._captions)
                return
            for task in tasks:
                shard = MemoryShard(_ids(task.clips), embed_clips(method.encode_videos, task.clips))
                self._galleries.append(task_gallery(task, shard, self._captions))

    def _measure(self, method: Method) -> None:
        """First what a worker measures of a release, for what it costs; then everything."""
        profiles = method.profiles.to_dense()
        with self._meter.phase("evaluation"):
            encoder = method.query_encoder(self._pinned)
            # Pinned queries would go to where the videos used to be.
            offered = ("latest",) if self._reindex else encoder.modes
            evaluate_row(
                encoder,
                self._galleries,
                profiles,
                prior=self._prior,
                modes=offered[-1:],  # the one that is searched in unless told otherwise
                full=False,
                ledger=self._served,
            )
        with self._meter.phase("research"):
            row = evaluate_row(
                encoder,
                self._galleries,
                profiles,
                prior=self._prior,
                modes=offered,
                memory=self._memory,
                ledger=self._ledger,
            )
        self.outcome.rows.append(to_json_value(row))


class _Steps:
    """Counts optimiser steps."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, progress: TrainingProgress) -> None:
        self.count += 1


def _ids(clips: Sequence[Clip]) -> npt.NDArray[np.int64]:
    return np.array([clip.vector_id for clip in clips], np.int64)
