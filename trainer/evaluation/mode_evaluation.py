"""Evaluation of one query mode: every query is scored against every video that can affect its rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from index.arrays import Floats, Vectors, batches
from models.routing.router import can_reach_score
from trainer.evaluation.evaluation_task import EvaluationTask
from trainer.evaluation.gallery import Encoder
from trainer.evaluation.rank_ledger import GALLERIES, SCOPES, GalleryName, Scope, TaskRanks
from trainer.evaluation.retrieval_metrics import TIE_TOLERANCE, Recall, mean_angle, skewness, summarize

# (mode, task) -> query vectors [Q, dim] of the task, encoded by the release that learned it.
QueryMemory = dict[tuple[str, str], Vectors]

MAX_QUERY_VECTORS = 2048  # encoded at a time, so that memory is bounded for any number of queries and tasks
_PRECISION_AT = (1, 5, 10)  # k of mAP@k, as in ctp
_NEAREST = 10  # k of the k-occurrence distribution


class ModeEvaluation:
    """Scoring of all tasks' queries in one query mode.

    Args:
        encoder: Query encoder of the release.
        tasks: All learned tasks, in order.
        full: Whether to compute all measures; see :func:`trainer.evaluation.recall_row.evaluate_row`.
        known_ranks: Ranks of the first tasks, which were scored against one another; updated in place. A task may have
            lost all its queries since.

    Attributes:
        task_ranks: Ranks of each task's queries, in task order.
    """

    def __init__(
        self,
        encoder: Encoder,
        tasks: Sequence[EvaluationTask],
        mode: str,
        full: bool,
        known_ranks: Sequence[TaskRanks],
    ) -> None:
        self.mode = mode
        self._full = full
        self._galleries = [name for name in GALLERIES if full or name != "global_raw"]
        self._encoder, self._tasks = encoder, tasks
        self.task_ranks = [
            ranks if ranks.query_count == len(tasks[position].texts) else self._start_task(position)
            for position, ranks in enumerate(known_ranks)
        ]
        # For each task, the positions of the tasks whose shards its queries have yet to be scored against.
        self._pending = [
            list(range(len(known_ranks) if position < len(known_ranks) else 0, len(tasks)))
            for position in range(len(tasks))
        ]

    @property
    def work(self) -> int:
        """Number of query-shard pairs that remain to be scored."""
        return sum(
            len(task.texts) * len(pending) for task, pending in zip(self._tasks, self._pending, strict=True)
        )

    def run(self) -> Iterator[int]:
        """Score all pending pairs, and yield the number of pairs in each completed part."""
        # Each task's queries are scored against their own videos first, which does not depend on later tasks.
        self.task_ranks += [
            self._start_task(position) for position in range(len(self.task_ranks), len(self._tasks))
        ]
        for position, (task, pending) in enumerate(zip(self._tasks, self._pending, strict=True)):
            size = max(1, MAX_QUERY_VECTORS // max(1, len(pending)))
            for start in range(0, len(task.texts) if pending else 0, size):
                part = slice(start, min(start + size, len(task.texts)))
                self._score(position, part)
                yield len(pending) * (part.stop - part.start)

    def recalls(self) -> dict[GalleryName, dict[str, Recall | None]]:
        """Compute the text-to-video recall by gallery and task ID."""
        return {
            gallery: {
                name: summarize(ranks.ranks[gallery].ranks())
                for name, ranks in zip(self._names, self.task_ranks, strict=True)
            }
            for gallery in self._galleries
        }

    def first_hits(self) -> dict[GalleryName, dict[str, bytes]]:
        """Pack into bits which queries rank their video first, most significant bit first; by gallery and task ID."""
        return {
            gallery: {
                name: np.packbits(ranks.ranks[gallery].ranks() <= 1).tobytes()
                for name, ranks in zip(self._names, self.task_ranks, strict=True)
            }
            for gallery in self._galleries
        }

    def pooled_recalls(self) -> dict[GalleryName, Recall | None]:
        """Compute the text-to-video recall over all tasks' queries, by gallery."""
        return {
            gallery: summarize(np.concatenate([ranks.ranks[gallery].ranks() for ranks in self.task_ranks]))
            for gallery in self._galleries
        }

    def caption_recalls(self) -> dict[Scope, dict[str, Recall | None]]:
        """Compute the video-to-text recall by scope and task ID."""
        return {
            scope: {
                name: summarize(ranks.captions[scope].ranks())
                for name, ranks in zip(self._names, self.task_ranks, strict=True)
            }
            for scope in SCOPES
        }

    def mean_average_precisions(self) -> dict[Scope, dict[str, dict[int, float] | None]]:
        """Compute mAP@k by scope, task ID and k; None for a task without classes."""
        return {
            scope: {
                name: {k: float(ranks.precisions[scope].at(k).mean()) for k in _PRECISION_AT}
                if ranks.precisions[scope].totals.any()
                else None
                for name, ranks in zip(self._names, self.task_ranks, strict=True)
            }
            for scope in SCOPES
        }

    def hubness(self) -> float | None:
        """Compute the skewness of N_10 over all tasks' held-out videos."""
        nearest = np.concatenate([ranks.nearest.items[ranks.nearest.items >= 0] for ranks in self.task_ranks])
        held_out = sum(int(task.held_out.sum()) for task in self._tasks)
        return skewness(np.bincount(nearest, minlength=held_out))

    def query_drift(self, memory: QueryMemory) -> dict[str, float | None]:
        """Compute the mean angle in degrees between each task's remembered and current queries, by task ID.

        Queries of tasks that are not in the memory are added to it.
        """
        drift: dict[str, float | None] = {}
        for name, ranks in zip(self._names, self.task_ranks, strict=True):
            key = (self.mode, name)
            if key in memory:
                drift[name] = mean_angle(memory[key], ranks.queries)
            memory.setdefault(key, ranks.queries)
        return drift

    @property
    def _names(self) -> list[str]:
        return [task.gallery.task for task in self._tasks]

    def _encode(self, texts: Sequence[str], tasks: Sequence[EvaluationTask]) -> Vectors:
        return self._encoder.encode(texts, [task.gallery.task for task in tasks], self.mode)

    def _start_task(self, position: int) -> TaskRanks:
        """Encode a task's queries for its own shard, and score each against its video."""
        task = self._tasks[position]
        queries, truth = np.empty((0, 0), np.float32), np.empty(0)
        if task.texts:
            if task.gallery.query_vectors is not None:
                queries = task.gallery.query_vectors
            else:
                parts = batches(task.texts, MAX_QUERY_VECTORS)
                queries = np.concatenate([self._encode(chunk, [task])[:, 0] for chunk in parts])
            truth = np.einsum("qd,qd->q", queries, task.vectors[task.columns], dtype=np.float64)
        every = slice(None)
        priors: dict[Scope, Floats] = {
            "local": np.zeros(len(truth)),
            "global": task.caption_prior(every, position)[:, 0],
        }
        captions: dict[Scope, Floats] = {scope: np.empty(0) for scope in SCOPES}
        for scope, prior in priors.items() if self._full else ():
            captions[scope] = np.full(len(task.captioned_columns), -np.inf)
            np.maximum.at(captions[scope], task.query_videos, truth + prior)
        return TaskRanks.start(
            queries,
            truth,
            task.video_prior(every, position)[:, 0],
            captions,
            galleries=self._galleries,
            nearest=_NEAREST if self._full else 0,
            precision_depth=max(_PRECISION_AT) if self._full else 0,
        )

    def _score(self, position: int, part: slice) -> None:
        """Score some of a task's queries against the pending tasks' videos."""
        task, task_ranks = self._tasks[position], self.task_ranks[position]
        ranks = {name: task_ranks.ranks[name][part] for name in self._galleries}
        precisions = {scope: task_ranks.precisions[scope][part] for scope in SCOPES}
        nearest = task_ranks.nearest[part]
        query_classes = task.classes[task.columns[part], None]
        for index, vectors in self._query_vectors(position, part):
            other, captions = self._tasks[index], self.task_ranks[index].captions
            scores = vectors @ other.vectors.T
            held_out = scores[:, other.held_out]
            prior = task.video_prior(part, index)
            routed = held_out + prior
            ranks["global"].add(routed)
            ranks["global_all"].add(scores + prior)
            if index == position:
                ranks["local"].add(held_out)
                ranks["local_all"].add(scores)
            if not self._full:
                continue
            relevant = (query_classes == other.classes[other.held_out]) & (query_classes >= 0)
            skip = None
            if index == position:
                # Captions of one video do not compete with each other.
                skip = np.arange(len(task.captioned_columns))[:, None] == task.query_videos[part]
                if query_classes.max() >= 0:
                    precisions["local"].add(held_out, relevant)
                captions["local"].add(scores[:, other.captioned_columns].T, skip)
            captions["global"].add(
                (scores[:, other.captioned_columns] + task.caption_prior(part, index)).T, skip
            )
            ranks["global_raw"].add(held_out)
            if query_classes.max() >= 0:
                precisions["global"].add(routed, relevant)
            nearest.add(routed, other.start + np.arange(routed.shape[1]))

    def _query_vectors(self, position: int, part: slice) -> Iterator[tuple[int, Vectors]]:
        """Yield the position of each pending task that must be scored, with the query vectors ``[n, dim]`` for it.

        Where no video of a shard can reach the score of a query's own video, the query is not encoded: its vector is
        zero, with which no video reaches that score either.
        """
        task, task_ranks, pending = self._tasks[position], self.task_ranks[position], self._pending[position]
        own = task_ranks.queries[part]
        if position in pending:
            yield position, own
        others = [index for index in pending if index != position]
        if self._encoder.is_task_independent(self.mode):
            yield from ((index, own) for index in others)
        elif self._full and others:
            vectors_by_task = self._encode(task.texts[part], [self._tasks[index] for index in others])
            yield from zip(others, vectors_by_task.swapaxes(0, 1), strict=True)
        else:
            threshold = task_ranks.ranks["global"].truth[part] - TIE_TOLERANCE
            for index in others:
                reached = np.flatnonzero(can_reach_score(task.video_prior(part, index)[:, 0], threshold))
                if len(reached):
                    vectors = np.zeros_like(own)
                    texts = [task.texts[part.start + query] for query in reached]
                    vectors[reached] = self._encode(texts, [self._tasks[index]])[:, 0]
                    yield index, vectors
