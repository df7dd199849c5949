"""One row of the recall matrix: how release i finds the videos of every task t ≤ i, and what else one pass can tell.

Five galleries. *Local*: the task's own shard, known task, one query vector. *Global*: the union of all
shards, unknown task; every shard is asked with its own query vector, and the cosines are merged, lifted by what
routing says of each task. Both hold the held-out videos alone, as the papers measure, or all videos
(``local_all``, ``global_all``). ``global_raw`` merges raw cosines, as the papers do, so that methods can be compared
without what routing does for all of them.

Every caption meets every video once. Along the rows of these scores captions look for videos; down the columns, videos
for captions.

Only stored vectors are read: videos of earlier tasks may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from models.routing import PRIOR, log_weights
from trainer.evaluate.gallery import Encoder, Gallery, Ids, Query, ShardVectors, Vectors
from trainer.evaluate.metrics import (
    BestOf,
    RankCount,
    Recall,
    average_precision,
    handicapped,
    mean_angle,
    rank_by_id,
    recall_at,
    skewness,
    summarise,
)

__all__ = [
    "GALLERIES",
    "Encoder",
    "Gallery",
    "GalleryName",
    "Query",
    "QueryMemory",
    "Row",
    "ShardVectors",
    "evaluate_row",
    "recall_of",
    "routing_accuracy",
]

Floats = npt.NDArray[np.floating]
Item = TypeVar("Item")
Scope = Literal["local", "global"]
GalleryName = Literal["local", "global", "global_raw", "local_all", "global_all"]
GALLERIES: tuple[GalleryName, ...] = ("local", "global", "global_raw", "local_all", "global_all")
LIFTED: tuple[GalleryName, ...] = ("global", "global_all")  # by routing
SCOPES: tuple[Scope, ...] = ("local", "global")
QueryMemory = dict[tuple[str, str], Vectors]  # (mode, task) → its queries by the release that learned it

_VECTORS = 2048  # query vectors made at a time: memory stays flat however many queries and tasks there are
_CANDIDATES = (1, 2, 4)  # m of routing accuracy@m
_PRECISION_AT = (1, 5, 10)  # k of mAP@k, as in ctp
_NEAREST = 10  # k of the k-occurrence distribution


@dataclass
class Row:
    """Measures of one release. Recalls and shares are 0..1; None for a task without queries.

    Attributes:
        recalls: text to video, by mode, gallery and task id.
        pooled: likewise over the queries of all tasks together, by mode and gallery.
        to_text: video to text, by mode, gallery and task id: how held-out videos find their captions, among those of
            the same gallery. Of several captions of a video the best counts.
        mean_ap: mAP@1, @5 and @10 of text to video, by mode, gallery, task id and k: whatever has the class of the
            query's video is relevant. None where a task has no classes.
        hubness: by mode, skewness of N_10 over the held-out videos of the union, for the queries of all tasks.
        drift: by mode and task id, how far its queries have moved since it was learned, mean angle in degrees; only
            of tasks that were in the memory.
        routing: by task id, routing accuracy@1: the share of its queries that sound most like their own task.
        routing_at: routing accuracy@m by task id and m = 1, 2, 4: its own task is among the first m.
    """

    recalls: dict[str, dict[GalleryName, dict[str, Recall | None]]] = field(default_factory=dict)
    pooled: dict[str, dict[GalleryName, Recall | None]] = field(default_factory=dict)
    to_text: dict[str, dict[Scope, dict[str, Recall | None]]] = field(default_factory=dict)
    mean_ap: dict[str, dict[Scope, dict[str, dict[int, float] | None]]] = field(default_factory=dict)
    hubness: dict[str, float | None] = field(default_factory=dict)
    drift: dict[str, dict[str, float | None]] = field(default_factory=dict)
    routing: dict[str, float | None] = field(default_factory=dict)
    routing_at: dict[str, dict[int, float] | None] = field(default_factory=dict)


def evaluate_row(
    encoder: Encoder,
    galleries: Sequence[Gallery],
    profiles: Vectors,
    *,
    prior: float = PRIOR,
    modes: Sequence[str] | None = None,
    memory: QueryMemory | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> Row:
    """Measure a release.

    Args:
        encoder: its query encoder.
        galleries: of every task it has learned, in order.
        profiles: ``[T, V]`` of the tasks, in the same order.
        prior: cosine per nat of routing evidence, added to the scores of a union gallery; 0 merges raw cosines.
        modes: query modes; all that the release offers by default.
        memory: handed from row to row, for query drift. A task's queries are noted in the first row that has them,
            which is to be that of the release that learned it; no old encoder is asked again.
        report: called with the share that is done.
    """
    row = Row()
    tasks = _laid_out(encoder, galleries, profiles, prior)
    for position, task in enumerate(tasks):
        name = task.gallery.task
        at = {m: routing_accuracy(task.evidence, position, m) for m in _CANDIDATES} if task.texts else None
        row.routing_at[name], row.routing[name] = at, at[1] if at else None
    chosen = list(encoder.modes if modes is None else modes)
    work = max(1, len(chosen) * sum(len(task.texts) for task in tasks))
    done = 0
    for mode in chosen:
        measuring = _Pass(encoder, tasks, mode)
        if memory is not None:
            row.drift[mode] = measuring.drift(memory)
        for count in measuring.run():
            done += count
            report(done / work)
        measuring.fill(row)
    return row


def recall_of(texts: Vectors, truth: Sequence[int], videos: Vectors, ids: Sequence[int]) -> Recall | None:
    """Recall of query vectors ``[Q, dim]`` against video vectors ``[G, dim]`` of these ids."""
    return summarise(rank_by_id(texts @ videos.T, ids, truth)) if len(truth) else None


def routing_accuracy(weights: Floats, own: int, m: int = 1) -> float:
    """Routing accuracy@m, 0..1: how often task ``own`` is among the first m that a text sounds like.

    An equally likely task counts against us.

    Args:
        weights: ``[Q, T]``, of every text and task; their scale does not matter.
    """
    return recall_at(rank_by_id(weights, range(weights.shape[1]), [own] * len(weights)), m)


@dataclass(frozen=True)
class _Task:
    """A gallery in columns, and what routing says of its queries.

    Attributes:
        texts: Q queries.
        columns: ``[Q]``, of each query's video in the shard.
        held_out: ``[G]``, whether a video is held out.
        start: how many held-out videos the tasks before it have.
        asking: columns of the videos that have a caption, each once.
        askers: ``[Q]``, place in ``asking`` of each query's video.
        classes: ``[G]``, the class of each video, from 0; −1 for none.
        evidence: ``[Q, T]``, log weight of every task for each query.
        prior: what it is multiplied with.
    """

    gallery: Gallery
    texts: list[str]
    columns: Ids
    held_out: npt.NDArray[np.bool_]
    start: int
    asking: Ids
    askers: Ids
    classes: Ids
    evidence: Floats
    prior: float

    @property
    def vectors(self) -> Vectors:
        """``[G, dim]``, read anew each time: a shard need not fit into memory beside others."""
        return self.gallery.shard.vectors(self.gallery.shard.ids)

    def lift(self, part: slice, position: int) -> Floats:
        """``[n, 1]``, what queries of a part add to the scores of a task in the union."""
        return np.asarray(self.prior * self.evidence[part, position : position + 1])


def _laid_out(encoder: Encoder, galleries: Sequence[Gallery], profiles: Vectors, prior: float) -> list[_Task]:
    numbers: dict[str, int] = {}
    tasks: list[_Task] = []
    start = 0
    for gallery in galleries:
        ids = gallery.shard.ids.tolist()
        texts = [query.text for query in gallery.queries]
        place = {video: column for column, video in enumerate(ids)}
        columns = np.array([place[query.vector_id] for query in gallery.queries], np.int64)
        asking, askers = np.unique(columns, return_inverse=True)
        labels: Mapping[int, str] = gallery.labels or {}
        classes = [
            numbers.setdefault(labels[video], len(numbers)) if video in labels else -1 for video in ids
        ]
        weights = [log_weights(encoder.words(chunk), profiles) for chunk in _chunks(texts, _VECTORS)]
        held_out = np.isin(gallery.shard.ids, gallery.held_out)
        tasks.append(
            _Task(
                gallery=gallery,
                texts=texts,
                columns=columns,
                held_out=held_out,
                start=start,
                asking=asking,
                askers=askers,
                classes=np.array(classes, np.int64),
                evidence=np.concatenate(weights) if weights else np.empty((0, len(galleries))),
                prior=prior,
            )
        )
        start += int(held_out.sum())
    return tasks


class _Pass:
    """One query mode: every caption meets every video."""

    def __init__(self, encoder: Encoder, tasks: Sequence[_Task], mode: str) -> None:
        self._encoder, self._tasks, self._mode = encoder, tasks, mode
        # Each query under its own task, made first and by itself: what it comes to does not depend on later tasks.
        self._own = [
            np.concatenate([self._encode(chunk, [task])[:, 0] for chunk in _chunks(task.texts, _VECTORS)])
            if task.texts
            else np.empty((0, 0), np.float32)
            for task in tasks
        ]
        self._ranks: list[dict[GalleryName, list[Floats]]] = [{name: [] for name in GALLERIES} for _ in tasks]
        self._precisions: list[dict[Scope, dict[int, list[Floats]]]] = [
            {scope: {k: [] for k in _PRECISION_AT} for scope in SCOPES} for _ in tasks
        ]
        self._occurrences = np.zeros(sum(int(task.held_out.sum()) for task in tasks), np.int64)
        self._captions = [self._best_captions(position) for position in range(len(tasks))]

    def drift(self, memory: QueryMemory) -> dict[str, float | None]:
        """By task, of those that the memory knows; the others are noted."""
        known: dict[str, float | None] = {}
        for task, vectors in zip(self._tasks, self._own, strict=True):
            key = (self._mode, task.gallery.task)
            if key in memory:
                known[task.gallery.task] = mean_angle(memory[key], vectors)
            memory.setdefault(key, vectors)
        return known

    def run(self) -> Iterator[int]:
        """Measure; gives the number of queries after each part."""
        for position, task in enumerate(self._tasks):
            size = max(1, _VECTORS // max(1, len(self._tasks) - 1))
            for start in range(0, len(task.texts), size):
                part = slice(start, min(start + size, len(task.texts)))
                self._meet(position, part)
                yield part.stop - part.start

    def fill(self, row: Row) -> None:
        """Write down what was measured."""
        mode, names = self._mode, [task.gallery.task for task in self._tasks]
        together = [{g: _joined(parts) for g, parts in ranks.items()} for ranks in self._ranks]
        row.recalls[mode] = {
            g: {name: summarise(ranks[g]) for name, ranks in zip(names, together, strict=True)}
            for g in GALLERIES
        }
        row.pooled[mode] = {g: summarise(_joined([ranks[g] for ranks in together])) for g in GALLERIES}
        row.to_text[mode] = {
            scope: {
                name: summarise(counts[scope].ranks())
                for name, counts in zip(names, self._captions, strict=True)
            }
            for scope in SCOPES
        }
        row.mean_ap[mode] = {
            scope: {
                name: {k: float(_joined(parts).mean()) for k, parts in precisions[scope].items()}
                if _joined(precisions[scope][1]).size
                else None
                for name, precisions in zip(names, self._precisions, strict=True)
            }
            for scope in SCOPES
        }
        row.hubness[mode] = skewness(self._occurrences)

    def _encode(self, texts: Sequence[str], tasks: Sequence[_Task]) -> Vectors:
        return self._encoder.encode(texts, [task.gallery.task for task in tasks], self._mode)

    def _best_captions(self, position: int) -> dict[Scope, RankCount]:
        """For the videos of a task that have captions: counts that know the score of the best of these."""
        task = self._tasks[position]
        own = (self._own[position] * task.vectors[task.columns]).sum(axis=1) if task.texts else np.empty(0)
        lifts: dict[Scope, Floats] = {
            "local": np.zeros(len(own)),
            "global": task.lift(slice(None), position)[:, 0],
        }
        counts: dict[Scope, RankCount] = {}
        for scope, lift in lifts.items():
            truth = np.full(len(task.asking), -np.inf)
            np.maximum.at(truth, task.askers, own + lift)
            counts[scope] = RankCount(truth)
            counts[scope].add(truth[:, None])
        return counts

    def _meet(self, position: int, part: slice) -> None:
        """Some queries of one task meet all videos of all tasks."""
        task = self._tasks[position]
        others = [other for index, other in enumerate(self._tasks) if index != position]
        encoded = iter(self._encode(task.texts[part], others).swapaxes(0, 1) if others else ())
        own = self._own[position][part] @ task.vectors.T  # once, so that truth meets itself
        truth = own[np.arange(len(own)), task.columns[part]]
        lifted = truth + task.lift(part, position)[:, 0]
        counts = {name: RankCount(lifted if name in LIFTED else truth) for name in GALLERIES}
        alike = {scope: _Alike(task.classes[task.columns[part]]) for scope in SCOPES}
        nearest = BestOf(_NEAREST)
        for index, other in enumerate(self._tasks):
            scores = own if index == position else next(encoded) @ other.vectors.T
            weighed = scores + task.lift(part, index)
            skip = None
            if index == position:
                counts["local"].add(scores[:, other.held_out])
                counts["local_all"].add(scores)
                alike["local"].add(scores[:, other.held_out], other.classes[other.held_out])
                skip = (
                    np.arange(len(task.asking))[:, None] == task.askers[part]
                )  # their captions do not compete
                self._captions[index]["local"].add(scores[:, other.asking].T, skip)
            held_out = weighed[:, other.held_out]
            counts["global"].add(held_out)
            counts["global_raw"].add(scores[:, other.held_out])
            counts["global_all"].add(weighed)
            alike["global"].add(held_out, other.classes[other.held_out])
            nearest.add(held_out, other.start + np.arange(held_out.shape[1]))
            self._captions[index]["global"].add(weighed[:, other.asking].T, skip)
        for name, count in counts.items():
            self._ranks[position][name].append(count.ranks())
        for scope, found in alike.items():
            for k, values in found.precisions().items():
                self._precisions[position][scope][k].append(values)
        np.add.at(self._occurrences, nearest.marks.ravel(), 1)


class _Alike:
    """What has the class of a query's video, in a gallery that arrives in parts.

    Args:
        wanted: ``[Q]``, class of each query's video; −1 for none.
    """

    def __init__(self, wanted: Ids) -> None:
        self._wanted = wanted
        self._totals = np.zeros(len(wanted), np.int64)
        self._best = BestOf(max(_PRECISION_AT))

    def add(self, scores: Floats, classes: Ids) -> None:
        """``[Q, n]`` scores of n more videos, and their classes ``[n]``."""
        if (self._wanted < 0).all():
            return
        relevant = (self._wanted[:, None] == classes) & (classes >= 0)
        self._totals += relevant.sum(axis=1)
        self._best.add(handicapped(scores, relevant), relevant.astype(np.int64))

    def precisions(self) -> dict[int, Floats]:
        """AP@k by k, of the queries whose video has a class."""
        known = self._totals > 0
        if not known.any():
            return {}
        hits, totals = self._best.marks[known] == 1, self._totals[known]
        return {k: average_precision(hits, totals, k) for k in _PRECISION_AT}


def _joined(parts: Sequence[Floats]) -> Floats:
    return np.concatenate(parts) if parts else np.empty(0)


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
