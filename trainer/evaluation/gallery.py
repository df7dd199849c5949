"""Galleries that a release is evaluated on: each task's videos, with held-out captions as queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from index.arrays import Ids, TokenIds, Vectors
from index.vector_ids import is_moment
from models.releases.measured_fold import MeasuredFold
from trainer.errors import EvaluationError
from trainer.task_data import TaskData, vector_ids


class Encoder(Protocol):
    """The part of :class:`models.encoders.query_encoder.QueryEncoder` that evaluation needs."""

    @property
    def modes(self) -> tuple[str, ...]: ...

    def token_presence(self, texts: Sequence[str]) -> Vectors: ...

    def tokenize(self, texts: Sequence[str]) -> list[TokenIds]: ...

    def routing_evidence(self, texts: Sequence[TokenIds], tasks: Sequence[str]) -> Vectors | None: ...

    @property
    def profile_factor(self) -> float: ...

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Vectors: ...

    def is_task_independent(self, mode: str) -> bool: ...


class ShardVectors(Protocol):
    """A shard's vectors by ID."""

    @property
    def ids(self) -> Ids: ...

    def vectors(self, ids: Ids) -> Vectors: ...


class WholeVideoShard:
    """A shard without moments: evaluation ranks videos, each by its own vector."""

    def __init__(self, shard: ShardVectors) -> None:
        self._shard = shard

    @cached_property
    def ids(self) -> Ids:
        """Vector IDs of the videos, ``int64 [n]``."""
        every = self._shard.ids
        return every[~is_moment(every)]

    def vectors(self, ids: Ids) -> Vectors:
        """Read the vectors of ``ids``, ``float32 [len(ids), dim]``."""
        return self._shard.vectors(ids)


class FoldShard:
    """A shard with the vectors that have not learned a fold, as far as they are known."""

    def __init__(self, shard: ShardVectors, fold: MeasuredFold) -> None:
        self.ids = shard.ids
        self._shard, self._fold = shard, fold

    def vectors(self, ids: Ids) -> Vectors:
        """Read the vectors of ``ids``, ``float32 [len(ids), dim]``."""
        vectors, is_replaced = self._shard.vectors(ids), np.isin(ids, self._fold.ids)
        vectors[is_replaced] = self._fold.video_vectors(ids[is_replaced])
        return vectors


@dataclass(frozen=True)
class Query:
    """A caption of a held-out video."""

    text: str
    vector_id: int


@dataclass(frozen=True)
class Gallery:
    """A task's videos and queries.

    Attributes:
        shard: Vectors of all the task's videos.
        held_out: Vector IDs of the videos that were kept from training, or are in the fold.
        queries: Captions of held-out videos; by convention the first of each, but several are possible.
        query_vectors: Vectors of the queries for their own task, ``[Q, dim]``; None if the encoder computes them.

    Raises:
        EvaluationError: A query belongs to a video that is not held out.
    """

    task: str
    shard: ShardVectors
    held_out: Ids
    queries: tuple[Query, ...]
    query_vectors: Vectors | None = None

    def __post_init__(self) -> None:
        unknown = {query.vector_id for query in self.queries} - {int(i) for i in self.held_out}
        if unknown:
            raise EvaluationError(
                f"task {self.task}: a query belongs to video {min(unknown)}, which is not held out"
            )


def task_gallery(task: TaskData, shard: ShardVectors, captions: int | None = 1) -> Gallery:
    """Build a task's gallery, with its ``test`` videos held out.

    Args:
        captions: Maximum number of captions per held-out video, in order; None for all.
    """
    return Gallery(
        task=task.task_id,
        shard=shard,
        held_out=vector_ids(task.test),
        queries=tuple(
            Query(caption, clip.vector_id) for clip in task.test for caption in clip.captions[:captions]
        ),
    )
