"""What a release is measured on: the videos of every task, and the captions that ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from index.vector_ids import is_moment
from trainer.errors import EvaluationError
from trainer.task_data import TaskData
from trainer.video_embedding import MemoryShard, embed_clips

__all__ = [
    "Encoder",
    "Gallery",
    "Ids",
    "Query",
    "ShardVectors",
    "Vectors",
    "WholeVideoShard",
    "reindex",
    "task_gallery",
]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Encoder(Protocol):
    """What a release's query encoder offers (:class:`models.encoders.query_encoder.QueryEncoder`)."""

    @property
    def modes(self) -> tuple[str, ...]: ...

    def token_presence(self, texts: Sequence[str]) -> Vectors: ...

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Vectors: ...

    def is_task_independent(self, mode: str) -> bool: ...

    def encoding_identity(self, task: str, mode: str) -> str | None: ...


class ShardVectors(Protocol):
    """What a shard offers."""

    @property
    def ids(self) -> Ids: ...

    def vectors(self, ids: Ids) -> Vectors: ...


class WholeVideoShard:
    """A shard without the moments of its videos: what is measured is how videos are found, each by its one vector."""

    def __init__(self, shard: ShardVectors) -> None:
        self._shard = shard

    @cached_property
    def ids(self) -> Ids:
        """``int64 [n]``."""
        every = self._shard.ids
        return every[~is_moment(every)]

    def vectors(self, ids: Ids) -> Vectors:
        """``float32 [len(ids), dim]``."""
        return self._shard.vectors(ids)


@dataclass(frozen=True)
class Query:
    """A caption of a held-out video."""

    text: str
    vector_id: int


@dataclass(frozen=True)
class Gallery:
    """The videos of one task.

    Attributes:
        task: id.
        shard: all of its videos.
        held_out: vector ids of those that were kept from training.
        queries: captions of held-out videos; by convention the first caption of each, but several are possible.
        labels: the class of a video by its vector id, where the data has classes; for mAP.
    """

    task: str
    shard: ShardVectors
    held_out: Ids
    queries: tuple[Query, ...]
    labels: Mapping[int, str] | None = None

    def __post_init__(self) -> None:
        strangers = {query.vector_id for query in self.queries} - {int(i) for i in self.held_out}
        if strangers:
            raise EvaluationError(f"task {self.task}: a query asks for video {min(strangers)}, not held out")


def task_gallery(task: TaskData, shard: ShardVectors, captions: int | None = 1) -> Gallery:
    """The gallery of a task; its ``test`` videos are held out.

    Args:
        captions: how many of each held-out video ask for it, from the first; None: all.
    """
    return Gallery(
        task=task.task_id,
        shard=shard,
        held_out=np.array([clip.vector_id for clip in task.test], np.int64),
        labels={clip.vector_id: clip.category for clip in task.clips if clip.category is not None} or None,
        queries=tuple(
            Query(caption, clip.vector_id) for clip in task.test for caption in clip.captions[:captions]
        ),
    )


def reindex(
    encode: Callable[[Tensor], Tensor], tasks: Sequence[TaskData], captions: int | None = 1
) -> list[Gallery]:
    """The other way to keep up with an encoder that moves: all videos of all tasks are embedded again by it.

    continual-cross-modal-retrieval compares both ways, bmu-moco and ctp always go this one; it needs the old videos and
    grows with the library. Measure such galleries in mode ``latest``: the other modes take a query to where the
    videos used to be.

    Args:
        encode: the current video encoder, ``uint8 [n, M, H, W, 3]`` to unit vectors ``[n, dim]``.
        tasks: all that were learned, with their clips.
        captions: as in :func:`task_gallery`.

    Raises:
        FramesMissing: the frames of a video are gone; names it.
    """
    galleries = []
    for task in tasks:
        ids = np.array([clip.vector_id for clip in task.clips], np.int64)
        galleries.append(task_gallery(task, MemoryShard(ids, embed_clips(encode, task.clips)), captions))
    return galleries
