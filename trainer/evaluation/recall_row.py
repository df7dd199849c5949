"""A row of the recall matrix: how well a release retrieves the videos of each learned task.

Row i of the matrix holds release i's recall for the tasks t ≤ i, in four galleries. *Local*: the task's own shard,
known task, one query vector. *Global*: the union of all shards, unknown task; each shard is scored with its own query
vector, and cosines are merged after each task's routing prior is added. Both galleries hold only the held-out
videos, as in the papers, or all videos (``local_all``, ``global_all``). Benchmarks also rank in ``global_raw``, which
merges raw cosines, as the papers do, so that methods can be compared without routing, which helps all of them.

A row rarely needs every shard: if the routing prior leaves a shard's videos no chance to reach the score of a query's
own video (:func:`models.routing.router.can_reach_score`), the query is not compared with them, and the figures stay the
same.

In a library of up to :data:`MAX_MEASURED_TASKS` tasks, a row measures all of them. In a larger one it measures evenly
spaced tasks and the newest, so that its cost grows linearly with the number of tasks: every shard remains a gallery.

Only stored vectors are read, since videos of earlier tasks may be gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids, Vectors, batches, find_ids
from models.encoders.query_encoder import QueryEncoder
from models.routing import DEFAULT_PRIOR
from models.routing.router import Router, can_reach_score, fill_uncaptioned
from models.routing.routing_profiles import RoutingProfiles
from trainer.evaluation.gallery import (
    TIE_TOLERANCE,
    Gallery,
    RankCount,
    RankSummary,
    rank_by_id,
    recall_at,
    summarize,
)

GalleryName = Literal["local", "global", "local_all", "global_all", "global_raw"]
Ranks = Mapping[GalleryName, Floats]  # rank of each query's video, from 1, by gallery

MAX_QUERY_VECTORS = 2048  # encoded at a time, so that memory is bounded for any number of queries and tasks
_BLOCK_VIDEOS = 4096  # scored at a time, unless a shard has more
_MAX_SCORES = 2**24  # computed at a time
MAX_MEASURED_TASKS = 64
_TEXTS = 256  # texts per chunk of piece presence, which is as wide as the vocabulary


@dataclass(frozen=True)
class TaskRecall:
    """Figures of a release for a task with queries."""

    recalls: Mapping[GalleryName, RankSummary]  # text-to-video recall by gallery
    # whether each query ranks its video first, one bit per query, most significant bit first; by gallery
    first_hits: Mapping[GalleryName, bytes]
    query_set: str  # digest of the queries' texts and videos, in their order
    # routing accuracy: the share of queries, 0..1, with the most evidence for their own task, among the tasks with
    # captions. A task whose training videos have no captions is never first
    routing: float


@dataclass(frozen=True)
class RecallRow:
    """Figures of a release, by the ID of each task with queries."""

    mode: str
    tasks: Mapping[str, TaskRecall]


@dataclass(frozen=True)
class EvaluationTask:
    """A gallery as arrays, and the routing evidence of its queries."""

    gallery: Gallery
    columns: Ids  # column of each query's video in the shard, [Q]
    is_held_out: npt.NDArray[np.bool_]  # whether each video of the shard is held out, [G]
    evidence: Floats  # log-odds of each query for each of T tasks, up to a constant per query, [Q, T]

    @property
    def texts(self) -> list[str]:
        """Texts of the queries."""
        return [query.text for query in self.gallery.queries]

    @property
    def vectors(self) -> Vectors:
        """Vectors of the shard, ``[G, dim]``; read on every access, since all shards may not fit into memory."""
        return self.gallery.shard.vectors(self.gallery.shard.ids)


def evaluate_row(
    encoder: QueryEncoder,
    galleries: Sequence[Gallery],
    profiles: RoutingProfiles,
    *,
    prior: float = DEFAULT_PRIOR,
    report: Callable[[float], None] = lambda share: None,
) -> RecallRow:
    """Evaluate a release on the galleries of all learned tasks, with their routing profiles, in its default
    query mode; raise EvaluationError if a score is not finite.

    The prior is the cosine per unit of log-odds, added to the scores in a union gallery; 0 merges raw cosines.
    """
    tasks = build_evaluation_tasks(encoder, galleries, profiles)
    has_captions = profiles.has_captions
    ranks_by_task = rank_queries(encoder, tasks, prior, report=report)
    figures = {}
    for index, (task, ranks) in enumerate(zip(tasks, ranks_by_task, strict=True)):
        recalls = {name: recall for name, each in ranks.items() if (recall := summarize(each)) is not None}
        if recalls:
            figures[task.gallery.task] = TaskRecall(
                recalls=recalls,
                first_hits={name: np.packbits(each <= 1).tobytes() for name, each in ranks.items()},
                query_set=_digest_queries(task.gallery),
                routing=_routing_accuracy(task.evidence, index, has_captions),
            )
    return RecallRow(encoder.modes[-1], figures)


def build_evaluation_tasks(
    encoder: QueryEncoder, galleries: Sequence[Gallery], profiles: RoutingProfiles
) -> list[EvaluationTask]:
    """Build one :class:`EvaluationTask` per gallery; arguments as in :func:`evaluate_row`."""
    names = [gallery.task for gallery in galleries]
    router = Router(profiles)
    tasks: list[EvaluationTask] = []
    for gallery in galleries:
        texts = [query.text for query in gallery.queries]
        column_of = {video: n for n, video in enumerate(gallery.shard.ids.tolist())} if texts else {}
        parts = [_evidence(encoder, router, chunk, names) for chunk in batches(texts, _TEXTS)]
        tasks.append(
            EvaluationTask(
                gallery=gallery,
                columns=np.array([column_of[query.vector_id] for query in gallery.queries], np.int64),
                is_held_out=find_ids(np.sort(gallery.held_out), gallery.shard.ids)[0],
                evidence=np.concatenate(parts) if parts else np.empty((0, len(galleries))),
            )
        )
    return tasks


def rank_queries(
    encoder: QueryEncoder,
    tasks: Sequence[EvaluationTask],
    prior: float,
    *,
    raw: bool = False,
    report: Callable[[float], None] = lambda share: None,
) -> list[Ranks]:
    """Rank the video of each task's queries ``[Q]``, by gallery; every video that can affect a rank is scored. ``raw``
    adds ``global_raw``, for which every query is encoded for every shard.
    """
    counts = [len(task.columns) for task in tasks]
    owners, total = np.repeat(np.arange(len(tasks)), counts), sum(counts)
    numbers = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)])
    largest = max((len(task.is_held_out) for task in tasks), default=1)
    size = max(1, min(MAX_QUERY_VECTORS, _MAX_SCORES // (_BLOCK_VIDEOS + largest)))

    @lru_cache(maxsize=1)  # the queries of a task may continue in the next part
    def encode_queries(task: int) -> Vectors:
        return _encode_queries(encoder, tasks[task])

    parts: list[Ranks] = []
    for start in range(0, total, size):
        rows = slice(start, start + size)
        in_part = [(t, numbers[rows][owners[rows] == t]) for t in np.unique(owners[rows]).tolist()]
        queries = np.concatenate([encode_queries(t)[chosen] for t, chosen in in_part])
        parts.append(_rank_part(encoder, tasks, in_part, queries, prior, raw=raw))
        report(min(1.0, (start + size) / total))
    ranks = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
    return [
        {name: each[owners == t] for name, each in ranks.items() if count} for t, count in enumerate(counts)
    ]


def _rank_part(
    encoder: QueryEncoder,
    tasks: Sequence[EvaluationTask],
    in_part: Sequence[tuple[int, Ids]],
    queries: Vectors,
    prior: float,
    *,
    raw: bool,
) -> Ranks:
    """Rank queries ``[Q, dim]`` in one pass over all shards, given the indices of their tasks, and numbers there."""
    owners = np.repeat([t for t, _ in in_part], [len(rows) for _, rows in in_part])
    chosen = [(tasks[t], rows) for t, rows in in_part]
    texts = [task.texts[row] for task, rows in chosen for row in rows.tolist()]
    videos = np.concatenate([task.vectors[task.columns[rows]] for task, rows in chosen])
    bonuses = prior * np.concatenate([task.evidence[rows] for task, rows in chosen])
    truth = np.einsum("qd,qd->q", queries, videos, dtype=np.float64)
    with_bonus = truth + bonuses[np.arange(len(owners)), owners]
    counts: dict[GalleryName, RankCount] = {
        "local": RankCount(truth),
        "global": RankCount(with_bonus),
        "local_all": RankCount(truth),
        "global_all": RankCount(with_bonus),
    }
    if raw:
        counts["global_raw"] = RankCount(truth)
    lowest = -np.inf if raw else counts["global"].truth[:, None] - TIE_TOLERANCE
    reached = can_reach_score(bonuses, lowest)
    reached[np.arange(len(owners)), owners] = False  # own queries have vectors
    needed = np.union1d(np.flatnonzero(reached.any(axis=0)), owners)
    names = [tasks[t].gallery.task for t in needed.tolist()]
    shards = (tasks[t].vectors for t in needed.tolist())
    parts: Iterator[Vectors] = (queries @ vectors.T for vectors in shards)
    if encoder.modes[-1] not in encoder.shared_modes:
        parts = encoder.cosines(texts, names, shards, reached[:, needed])
    block: list[tuple[int, Vectors]] = []
    width = 0
    for t, part in zip(needed.tolist(), parts, strict=True):
        if (is_own := owners == t).any():
            part[is_own] = own = queries[is_own] @ tasks[t].vectors.T
            counts["local"].add(own[:, tasks[t].is_held_out], is_own)
            counts["local_all"].add(own, is_own)
        block.append((t, part))
        width += part.shape[1]
        if width < _BLOCK_VIDEOS and t != needed[-1]:
            continue
        held_out = np.concatenate([tasks[t].is_held_out for t, _ in block])
        cosines = np.concatenate([part for _, part in block], axis=1)
        if raw:
            counts["global_raw"].add(cosines[:, held_out])
        columns = np.repeat([t for t, _ in block], [part.shape[1] for _, part in block])
        scores = cosines + bonuses[:, columns]
        counts["global"].add(scores[:, held_out])
        counts["global_all"].add(scores)
        block, width = [], 0
    return {name: count.ranks() for name, count in counts.items()}


def _encode_queries(encoder: QueryEncoder, task: EvaluationTask) -> Vectors:
    """Encode a task's queries for its own shard, ``[Q, dim]``."""
    if task.gallery.query_vectors is not None:
        return task.gallery.query_vectors
    task_id, mode = task.gallery.task, encoder.modes[-1]
    chunks = batches(task.texts, MAX_QUERY_VECTORS)
    return np.concatenate([encoder.encode(chunk, [task_id], mode)[:, 0] for chunk in chunks])


def _evidence(encoder: QueryEncoder, router: Router, queries: Sequence[str], names: Sequence[str]) -> Floats:
    """Compute log weights ``[n, T]`` as :func:`models.routing.router.log_weights` does, not normalized over tasks."""
    presence = encoder.piece_presence(queries)
    scores: Floats = np.array([router.sum_tokens(np.flatnonzero(row))[0] for row in presence])
    other = encoder.routing_evidence(encoder.tokenize(queries), names)
    if other is not None:
        scores += other
    fill_uncaptioned(scores, router.profiles.has_captions)
    return scores


def _routing_accuracy(evidence: Floats, task: int, has_captions: npt.NDArray[np.bool_]) -> float:
    """Compute the share of a task's queries with the most evidence ``[Q, T]`` for it among the tasks with captions.

    A tie counts as a miss. A task without captions takes the evidence of the likeliest other task, which it would tie
    with.
    """
    rivals = np.flatnonzero(has_captions | (np.arange(len(has_captions)) == task))
    ranks = rank_by_id(evidence[:, rivals], rivals.tolist(), [task] * len(evidence))
    return recall_at(ranks, 1)


def _digest_queries(gallery: Gallery) -> str:
    queries = [[query.text, int(query.vector_id)] for query in gallery.queries]
    return hashlib.sha256(json.dumps(queries).encode()).hexdigest()


def select_measured_tasks(tasks: Sequence[str]) -> frozenset[str]:
    """Select, of tasks in learned order, at most :data:`MAX_MEASURED_TASKS` evenly spaced ones, and the newest.

    The distance is a power of two, so a growing library stops measuring tasks but never resumes one: the remaining
    tasks' columns are complete.
    """
    distance = 1
    while len(tasks) > MAX_MEASURED_TASKS * distance:
        distance *= 2
    return frozenset([*tasks[::distance], *tasks[-1:]])
