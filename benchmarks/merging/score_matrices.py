"""Scores of the captions of one split with the videos of all tasks, for one query mode and one frame pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.merging.learned_shards import LearnedShards
from benchmarks.merging.score_calibration import late_interaction
from models.routing.router import log_weights
from trainer.batching import chunks
from trainer.evaluation.retrieval_metrics import rank_by_id
from trainer.task_data import Split, TaskData

__all__ = ["QueryModeScores", "ScoreMatrix", "SplitCaptions", "encode_in_chunks", "split_captions"]

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_QUERY_VECTORS = 256  # query vectors per encoder call: their hidden states stay in the processor's cache


@dataclass(frozen=True)
class ScoreMatrix:
    """Scores of Q captions of one split with the G videos of that split, over all T tasks.

    Attributes:
        cosines: Cosines ``[Q, G]``; the column of a video uses the query vector of its shard.
        rows: Task of each caption ``[Q]``.
        columns: Task of each video ``[G]``.
        truth: Column of each caption's video ``[Q]``.
        evidence: Routing evidence ``[Q, T]``: log-likelihood of each caption under each routing profile.
        bank: Cosines ``[B, G]`` of all training captions with the same videos.
        bank_rows: Task of each training caption ``[B]``.
    """

    cosines: Floats
    rows: Ints
    columns: Ints
    truth: Ints
    evidence: Floats
    bank: Floats
    bank_rows: Ints

    def ranks(self, scores: Floats) -> Floats:
        """Ranks ``[Q]`` of the true videos under scores ``[Q, G]``, with the tie rule of the evaluation."""
        return rank_by_id(scores, range(len(self.columns)), self.truth.tolist())

    def reciprocal_rank(self, scores: Floats) -> float:
        """Mean reciprocal rank of the true videos, the criterion of every selection."""
        return float((1 / self.ranks(scores)).mean())


@dataclass(frozen=True)
class SplitCaptions:
    """All captions of a split, task by task.

    Attributes:
        texts: The captions.
        rows: Task of each caption.
        truth: Column of each caption's video.
        columns: Task of each video.
        positions: Per task, positions of the split's videos among the clips of the task.
    """

    texts: list[str]
    rows: Ints
    truth: Ints
    columns: Ints
    positions: list[Ints]


def split_captions(tasks: Sequence[TaskData], splits: Sequence[Split]) -> SplitCaptions:
    """Collect the captions of one split per task.

    Args:
        tasks: The tasks.
        splits: Split of each task.
    """
    texts: list[str] = []
    rows: list[int] = []
    truth: list[int] = []
    columns: list[int] = []
    positions: list[Ints] = []
    for index, (task, split) in enumerate(zip(tasks, splits, strict=True)):
        selected = [(position, clip) for position, clip in enumerate(task.clips) if clip.split == split]
        for _, clip in selected:
            texts += clip.captions
            rows += [index] * len(clip.captions)
            truth += [len(columns)] * len(clip.captions)
            columns.append(index)
        positions.append(np.array([position for position, _ in selected], np.int64))
    return SplitCaptions(texts, np.array(rows), np.array(truth), np.array(columns), positions)


class QueryModeScores:
    """Score matrices of one query mode, for every split and frame pooling.

    Args:
        learned: Shards of all tasks.
        captions: Captions of each split.
        mode: Query mode of the encoder.
    """

    def __init__(self, learned: LearnedShards, captions: Mapping[Split, SplitCaptions], mode: str) -> None:
        self._learned, self._captions = learned, captions
        names = [task.task_id for task in learned.tasks]
        size = max(1, _QUERY_VECTORS // len(names))
        self._queries = {
            split: encode_in_chunks(
                lambda texts: learned.encoder.encode(texts, names, mode), selected.texts, size
            )
            for split, selected in captions.items()
        }
        self._evidence = {
            split: log_weights(learned.encoder.token_presence(selected.texts), learned.profiles)
            for split, selected in captions.items()
        }

    def matrix(self, split: Split, tau: float | None) -> ScoreMatrix:
        """Score matrix of a split.

        Args:
            split: Split of both captions and videos.
            tau: Temperature of late interaction; None for mean-pooled videos.
        """
        selected, bank = self._captions[split], self._captions["train"]
        return ScoreMatrix(
            cosines=self._cosines(split, split, tau),
            rows=selected.rows,
            columns=selected.columns,
            truth=selected.truth,
            evidence=self._evidence[split],
            bank=self._cosines("train", split, tau),
            bank_rows=bank.rows,
        )

    def _cosines(self, captions: Split, videos: Split, tau: float | None) -> Vectors:
        queries = self._queries[captions]
        parts = []
        for task, positions in enumerate(self._captions[videos].positions):
            if tau is None:
                parts.append(queries[:, task] @ self._learned.videos[task][positions].T)
            else:
                assert self._learned.frames is not None
                parts.append(late_interaction(queries[:, task], self._learned.frames[task][positions], tau))
        return np.concatenate(parts, axis=1)


def encode_in_chunks(
    encode: Callable[[Sequence[str]], Vectors], texts: Sequence[str], size: int = _QUERY_VECTORS
) -> Vectors:
    """Encode texts in calls of at most ``size`` texts."""
    return np.concatenate([encode(chunk) for chunk in chunks(texts, size)])
