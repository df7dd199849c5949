"""Run one benchmark: a method learns a protocol's tasks with one seed, and is evaluated after each.

Training, indexing and evaluation are those of the learning job, without the service. A method that needs the videos of
all tasks (joint training) is trained once, on the union of all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.learning.labeled_pairs import fused_pair_precisions
from benchmarks.learning.run_costs import (
    ParameterCounts,
    ResourceMeter,
    count_release_numbers,
    count_search_numbers,
    count_trained_parameters,
)
from benchmarks.learning.run_progress import REPORT_SECONDS, RunProgress
from benchmarks.learning.run_results import to_json_value
from benchmarks.learning.sequential_learning import SequentialLearner
from benchmarks.rivals.joint import Joint
from models.backbones.backbone import Backbone
from models.encoders.query_encoder import QueryEncoder
from models.routing import DEFAULT_PRIOR
from trainer.evaluation.gallery import Encoder, Gallery, Query, task_gallery
from trainer.evaluation.mode_evaluation import QueryMemory
from trainer.evaluation.rank_ledger import RankLedger
from trainer.evaluation.recall_row import compute_recall, evaluate_row
from trainer.evaluation.retrieval_metrics import Recall
from trainer.task_data import Clip, TaskData
from trainer.training_loop import TrainingProgress
from trainer.video_embedding import embed_clips

QuerySelection = Literal["first", "all"]


@dataclass
class RunOutcome:
    """What a run measured; the fields are those of :class:`benchmarks.learning.run_results.RunResult`."""

    settings: dict[str, Any]
    meter: ResourceMeter
    rows: list[dict[str, Any] | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    before: list[dict[str, Any] | None] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)


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
    report_seconds: float = REPORT_SECONDS,
) -> RunOutcome:
    """Learn the tasks in order with one method, and evaluate after each task.

    Args:
        backbone: Backbone that the method adapts.
        settings: The method's settings, over those of its recipe.
        prior: Routing prior in the global gallery; 0 merges raw cosines.
        reindex: Whether to embed all tasks' videos again after every task, with the current encoder.
        jointly: Whether the method learns the union of all tasks at once.
        mixed_batches: Whether batches in joint training mix videos from all tasks.
        queries: Which of a held-out video's captions are queries: the first one or all.
        report: Called with one line per finished task, and with the task and its stage or step whenever there was no
            line for ``report_seconds``; in the second case from another thread.
        report_seconds: Longest time without a line.
    """
    with RunProgress(report, report_seconds) as progress:
        learner = SequentialLearner(name, backbone, {**(settings or {}), "seed": seed})
        run = _MethodRun(learner, backbone, tasks, prior, reindex, queries, progress)
        if jointly or name == Joint.name:
            run.learn_jointly(mixed_batches)
        else:
            run.learn_in_sequence()
    return run.outcome


class _MethodRun:
    """What a run keeps between tasks: the learner, the galleries and reusable evaluation results."""

    def __init__(
        self,
        learner: SequentialLearner,
        backbone: Backbone,
        tasks: Sequence[TaskData],
        prior: float,
        reindex: bool,
        queries: QuerySelection,
        progress: RunProgress,
    ) -> None:
        self._learner = learner
        self._tasks, self._prior, self._reindex, self._progress = tasks, prior, reindex, progress
        self._part = ""  # the task in progress, for progress lines
        self._captions = 1 if queries == "first" else None
        self._galleries: list[Gallery] = []
        self._query_memory: QueryMemory = {}
        self._served_ledger: RankLedger = {}
        self._full_ledger: RankLedger = {}
        self._meter = ResourceMeter(backbone.device)
        self.outcome = RunOutcome({}, self._meter)

    def learn_in_sequence(self) -> None:
        trained = 0
        for number, task in enumerate(self._tasks, 1):
            self._part = f"task {number} of {len(self._tasks)} ({task.name})"
            self._measure_forward_transfer(task)
            if number == len(self._tasks):
                trained = self._count_trained(task.training_captions)
            self._train(partial(self._learner.train, task))
            self._index([task])
            self._evaluate()
            self._progress.line(f"{self._part} in {self._last_seconds():.0f} s")
        self._count_parameters(trained, earlier=len(self._tasks) - 1)

    def learn_jointly(self, mixed_batches: bool) -> None:
        self._part = f"all {len(self._tasks)} tasks at once"
        trained = self._count_trained([text for task in self._tasks for text in task.training_captions])
        self._train(partial(self._learner.train_jointly, self._tasks, mixed_batches=mixed_batches))
        self._index(self._tasks)
        # Joint training has no releases between the tasks.
        self.outcome.rows += [None] * (len(self._tasks) - 1)
        self.outcome.before += [None] * len(self._tasks)
        self._evaluate()
        self._progress.line(f"{self._part} in {self._last_seconds():.0f} s")
        self._count_parameters(trained, earlier=0)

    def _count_parameters(self, trained: int, *, earlier: int) -> None:
        """Record the method's sizes after the last task."""
        release, learner = self._learner.release, self._learner
        assert release is not None
        self.outcome.parameters = to_json_value(
            ParameterCounts(
                trained=trained,
                release=count_release_numbers(release, earlier),
                search={
                    mode: count_search_numbers(release, learner.pinned, mode)
                    for mode in self._modes(learner.query_encoder())
                },
            )
        )

    def _count_trained(self, captions: Sequence[str]) -> int:
        """Count the parameters that training on these captions changes in the next task."""
        with torch.random.fork_rng():
            method = self._learner.start_task()
            method.begin_task("next", "next", trained=bool(captions))
            return count_trained_parameters(method, captions)

    def _phase(self, name: str) -> AbstractContextManager[None]:
        """Measure a phase, and name it in the run's progress."""
        self._progress.update(f"{self._part}: {name}")
        return self._meter.phase(name)

    def _train(self, train: Callable[..., list[float]]) -> None:
        """Train one task or all, and record settings, steps and losses."""
        steps = 0

        def report(progress: TrainingProgress) -> None:
            nonlocal steps
            steps = progress.step
            self._progress.update(f"{self._part}: training, step {progress.step} of {progress.steps}")

        with self._phase("training"):
            losses = train(report=report)
        assert self._learner.method is not None
        self.outcome.settings = self._learner.method.config.model_dump(mode="json")
        self.outcome.steps.append(steps)
        self.outcome.losses.append(losses)

    def _measure_forward_transfer(self, task: TaskData) -> None:
        """Evaluate the release before a task on the task's queries."""
        if self._learner.method is None:
            self.outcome.before.append(None)
            return
        with self._phase("transfer"):
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

    def _index(self, tasks: Sequence[TaskData]) -> None:
        """Embed these tasks' videos or, with ``reindex``, those of all trained tasks."""
        with self._phase("indexing"):
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
        """Evaluate as the learning job does, to measure its cost, then with all research measures."""
        assert self._learner.method is not None
        assert self._learner.release is not None
        profiles = self._learner.release.profiles.to_dense()
        with self._phase("evaluation"):
            encoder = self._learner.query_encoder()
            modes = self._modes(encoder)
            evaluate_row(
                encoder,
                self._galleries,
                profiles,
                prior=self._prior,
                modes=modes[-1:],  # a search's default mode
                full=False,
                ledger=self._served_ledger,
                report=self._report_evaluation,
            )
        with self._phase("research"):
            row = evaluate_row(
                encoder,
                self._galleries,
                profiles,
                prior=self._prior,
                modes=modes,
                memory=self._query_memory,
                ledger=self._full_ledger,
                report=self._report_evaluation,
            )
            pair_map = fused_pair_precisions(self._learner.method, self._learner.tasks)
        self.outcome.rows.append(
            to_json_value(row) | ({"pair_map": to_json_value(pair_map)} if pair_map else {})
        )

    def _report_evaluation(self, share: float) -> None:
        self._progress.update(f"{self._part}: evaluation, {share:.0%}")

    def _modes(self, encoder: QueryEncoder) -> tuple[str, ...]:
        """Choose the query modes to evaluate: pinned encoders do not match shards that were embedded again."""
        return ("latest",) if self._reindex else encoder.modes

    def _last_seconds(self) -> float:
        return sum(durations[-1] for durations in self._meter.seconds.values())


def recall_before_learning(
    encoder: Encoder,
    newest: str,
    encode_videos: Callable[[Tensor], Tensor],
    clips: Sequence[Clip],
    queries: Sequence[Query],
) -> Recall | None:
    """Compute the recall of release t−1 on task t's held-out videos, local gallery; None without queries.

    The release has no shard for the task and, if its queries are conditioned on a task, no condition for it. Both are
    obtained as the product does for a task that is indexed without training: videos are embedded by the release's
    newest video encoder, and queries are encoded for the newest learned task. For fine-tuned towers, these are simply
    both towers. :func:`models.forgetting_measures.forward_transfer` compares the recalls of all tasks with zero-shot
    recalls.

    Args:
        encoder: Query encoder of release t−1.
        newest: ID of the task that release t−1 learned last.
        encode_videos: Video encoder of release t−1, ``uint8 [n, M, H, W, 3]`` to unit vectors ``[n, dim]``.
        queries: Captions of these videos.

    Raises:
        FramesMissing: A video's frames are gone.
    """
    if not queries:
        return None
    texts = encoder.encode([query.text for query in queries], [newest], "latest")[:, 0]
    truth = [query.vector_id for query in queries]
    videos = embed_clips(encode_videos, clips)
    return compute_recall(texts, truth, videos, [clip.vector_id for clip in clips])
