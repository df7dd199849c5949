"""Multi-modal retrieval in benchmarks: labeled pairs search for pairs by their fused vectors (ctp, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.arrays import Vectors, batches
from trainer.evaluation.retrieval_metrics import TopItems, penalize_relevant
from trainer.methods import Method
from trainer.task_data import Clip, TaskData, load_frames

_BATCH = 32  # fixed, so that repeated runs give the same bits


@dataclass(frozen=True)
class LabeledTask(TaskData):
    """A task with labeled pairs of a video and its first caption; the label is the video's category.

    Attributes:
        pair_queries: Pairs to search with.
        pair_gallery: Pairs to search for.
    """

    pair_queries: tuple[Clip, ...] = ()
    pair_gallery: tuple[Clip, ...] = ()


def fused_pair_precisions(method: Method, tasks: Sequence[TaskData]) -> dict[int, float] | None:
    """Compute mAP@N over several tasks' labeled pairs together, by N.

    All pairs are encoded with the current networks, as in ctp: queries and gallery grow with each task.

    Args:
        method: Method after its newest task.

    Returns:
        Precisions 0..1; None if the method has no multi-modal encoder or the tasks have no labeled pairs.
    """
    labeled = [task for task in tasks if isinstance(task, LabeledTask)]
    if not labeled or not method.encodes_pairs:
        return None
    queries = [clip for task in labeled for clip in task.pair_queries]
    gallery = [clip for task in labeled for clip in task.pair_gallery]
    return pair_precisions(_labeled_vectors(method, queries), _labeled_vectors(method, gallery))


def _labeled_vectors(method: Method, clips: Sequence[Clip]) -> LabeledVectors:
    vectors: list[npt.NDArray[np.float32]] = []
    for chunk in batches(clips, _BATCH):
        texts = [clip.captions[0] if clip.captions else "" for clip in chunk]
        vectors.append(method.encode_pairs(load_frames(chunk), texts).float().cpu().numpy())
    labels = [clip.category or "" for clip in clips]
    return LabeledVectors(np.concatenate(vectors), [clip.id for clip in clips], labels)


Floats = npt.NDArray[np.floating]

_DEPTHS = (1, 5, 10)  # N of mAP@N, as in ctp, table 1
_SCORES = 1 << 24  # scores computed at a time, to limit memory


@dataclass(frozen=True)
class LabeledVectors:
    """Unit vectors of pairs, with their labels.

    Attributes:
        vectors: Unit vectors ``[n, dim]``.
    """

    vectors: Vectors
    ids: Sequence[str]
    labels: Sequence[str]


def pair_precisions(
    queries: LabeledVectors, gallery: LabeledVectors, depths: Sequence[int] = _DEPTHS
) -> dict[int, float] | None:
    """Compute mAP@N by N, 0..1 (ctp, equation 11): gallery pairs with the query's label are relevant.

    A pair does not find itself: gallery pairs with the query's ID do not compete. Among equal scores, irrelevant pairs
    rank first. Queries without a relevant pair in the gallery are excluded.

    Args:
        queries: Pairs to search with.
        gallery: Pairs to search for.
        depths: Values of N.

    Returns:
        Precisions by N; None if no query has a relevant pair.
    """
    if not len(queries.ids) or not len(gallery.ids):
        return None
    numbers: dict[str, int] = {}
    names: dict[str, int] = {}
    label_numbers = _numbered(gallery.labels, numbers)
    id_numbers = _numbered(gallery.ids, names)
    query_labels, query_ids = _numbered(queries.labels, numbers), _numbered(queries.ids, names)
    items = np.arange(len(gallery.ids))
    hits: list[npt.NDArray[np.bool_]] = []
    step = max(1, _SCORES // len(items))
    for start in range(0, len(query_ids), step):
        part = slice(start, start + step)
        own = query_ids[part, None] == id_numbers
        relevant = (query_labels[part, None] == label_numbers) & ~own
        scores = penalize_relevant(queries.vectors[part] @ gallery.vectors.T, relevant)
        top = TopItems(max(depths), len(scores))
        top.add(np.where(own, -np.inf, scores), items)
        found = np.take_along_axis(relevant, np.maximum(top.items, 0), axis=1) & np.isfinite(top.scores)
        hits.append(found[relevant.any(axis=1)])
    ranked = np.concatenate(hits)
    if not len(ranked):
        return None
    return {depth: float(average_precision_of_hits(ranked, depth).mean()) for depth in depths}


def average_precision_of_hits(hits: npt.NDArray[np.bool_], depth: int) -> Floats:
    """Average the precision at the ranks of the hits among the first ``depth``, over these hits ``[Q]``.

    In equation 11 of ctp, R_q(k) counts the hits before rank k, since otherwise P_q(k) exceeds 1, and m_q counts the
    hits among the first N, as in the published code. The value is 0 without a hit.
    :func:`trainer.evaluation.retrieval_metrics.average_precision` divides by the number of possible hits instead.

    Args:
        hits: Whether the pair at each rank is relevant ``[Q, n]``.
        depth: Depth N of the ranking.
    """
    first = hits[:, :depth]
    counts = first.cumsum(axis=1)
    precision = counts / np.arange(1, first.shape[1] + 1)
    return np.asarray((precision * first).sum(axis=1) / np.maximum(1, first.sum(axis=1)))


def _numbered(names: Sequence[str], numbers: dict[str, int]) -> npt.NDArray[np.int64]:
    """Number the names; new ones are added to ``numbers``."""
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
