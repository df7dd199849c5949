"""Multi-modal retrieval in benchmarks: labeled pairs search pairs by their fused vectors (ctp, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.batching import chunks
from trainer.evaluation.pair_retrieval import LabeledVectors, pair_precisions
from trainer.methods import Method
from trainer.task_data import Clip, TaskData, load_frames

__all__ = ["LabeledTask", "fused_pair_precisions"]

_BATCH = 32  # fixed, so that repeated runs give the same bits


@dataclass(frozen=True)
class LabeledTask(TaskData):
    """A task with labeled pairs of a video and its first caption; the label is the category of the video.

    Attributes:
        pair_queries: Pairs that search.
        pair_gallery: Pairs that are searched.
    """

    pair_queries: tuple[Clip, ...] = ()
    pair_gallery: tuple[Clip, ...] = ()


def fused_pair_precisions(method: Method, tasks: Sequence[TaskData]) -> dict[int, float] | None:
    """mAP@N of the labeled pairs of some tasks together, by N.

    All pairs are encoded with the current networks, as in ctp: queries and gallery grow with each task.

    Args:
        method: Method after its newest task.
        tasks: Learned tasks.

    Returns:
        Precisions 0..1; None if the method has no multi-modal encoder, or the tasks have no labeled pairs.
    """
    labeled = [task for task in tasks if isinstance(task, LabeledTask)]
    if not labeled or not method.encodes_pairs:
        return None
    queries = [clip for task in labeled for clip in task.pair_queries]
    gallery = [clip for task in labeled for clip in task.pair_gallery]
    return pair_precisions(_labeled_vectors(method, queries), _labeled_vectors(method, gallery))


def _labeled_vectors(method: Method, clips: Sequence[Clip]) -> LabeledVectors:
    vectors: list[npt.NDArray[np.float32]] = []
    for chunk in chunks(clips, _BATCH):
        texts = [clip.captions[0] if clip.captions else "" for clip in chunk]
        vectors.append(method.encode_pairs(load_frames(chunk), texts).float().cpu().numpy())
    labels = [clip.category or "" for clip in clips]
    return LabeledVectors(np.concatenate(vectors), [clip.id for clip in clips], labels)
