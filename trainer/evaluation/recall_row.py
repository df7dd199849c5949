"""One row of the recall matrix: how release i finds the videos of every task t ≤ i, and what else one pass can tell.

Five galleries. *Local*: the task's own shard, known task, one query vector. *Global*: the union of all
shards, unknown task; every shard is asked with its own query vector, and the cosines are merged, lifted by what
routing says of each task. Both hold the held-out videos alone, as the papers measure, or all videos
(``local_all``, ``global_all``). ``global_raw`` merges raw cosines, as the papers do, so that methods can be compared
without what routing does for all of them.

A row can be had without all that compares methods: then it holds what a user of the library meets, text to video and
lifted. That alone seldom takes a query vector for every shard. Where what routing says leaves a shard's videos no
chance to come level with a query's own (:func:`models.routing.router.can_reach_score`), the query is not encoded for it, and the
figures are the same. Where words tell tasks apart, a query costs one encoding, however many tasks there are.

Every caption meets every video once: in one row, or, where neither can change, in the row of the later of the two
(:mod:`trainer.evaluation.rank_ledger`). Along the rows of these scores captions look for videos; down the columns, videos for
captions.

What routing says of a text is its log weight among all tasks. That of a text under two tasks differs by the same
whatever further tasks there are, and so does a video's place among videos. Down a column texts compete that were
weighed each by itself, and there a further task would move them all: a caption counts with its log weight among the
tasks that were there when it came, itself the last, as a catalogue of captions that is never made again would have it.

Only stored vectors are read: videos of earlier tasks may be gone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from models.routing.defaults import DEFAULT_PRIOR
from models.routing.router import can_reach_score, fill_silent, silent_tasks
from trainer.evaluation.gallery import Encoder, Gallery, Ids, Query, ShardVectors, Vectors
from trainer.evaluation.rank_ledger import (
    GALLERIES,
    SCOPES,
    GalleryName,
    LedgerPage,
    RankLedger,
    Scope,
    TaskRanks,
)
from trainer.evaluation.retrieval_metrics import (
    TIE,
    Recall,
    mean_angle,
    rank_by_id,
    recall_at,
    skewness,
    summarize,
)

__all__ = [
    "GALLERIES",
    "Encoder",
    "Gallery",
    "GalleryName",
    "Query",
    "QueryMemory",
    "RankLedger",
    "RecallRow",
    "ShardVectors",
    "compute_recall",
    "evaluate_row",
    "routing_accuracy",
]

Floats = npt.NDArray[np.floating]
Item = TypeVar("Item")
QueryMemory = dict[tuple[str, str], Vectors]  # (mode, task) → its queries by the release that learned it

_VECTORS = 2048  # query vectors made at a time: memory stays flat however many queries and tasks there are
_TEXTS = 256  # texts whose words are laid out at a time, a vocabulary wide
_CANDIDATES = (1, 2, 4)  # m of routing accuracy@m
_PRECISION_AT = (1, 5, 10)  # k of mAP@k, as in ctp
_NEAREST = 10  # k of the k-occurrence distribution
_DEFINITION = 1  # of the figures: with another number, what was counted before no longer counts


@dataclass
class RecallRow:
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
    prior: float = DEFAULT_PRIOR,
    modes: Sequence[str] | None = None,
    full: bool = True,
    memory: QueryMemory | None = None,
    ledger: RankLedger | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> RecallRow:
    """Measure a release.

    Args:
        encoder: its query encoder.
        galleries: of every task it has learned, in order.
        profiles: ``[T, V]`` of the tasks, in the same order.
        prior: cosine per nat of routing evidence, added to the scores of a union gallery; 0 merges raw cosines.
        modes: query modes; all that the release offers by default.
        full: whether to measure everything. Otherwise ``global_raw``, ``to_text``, ``mean_ap`` and ``hubness`` are
            left out, which take most pairs of a query and a shard. The rest takes few, and is the same either way.
        memory: handed from row to row, for query drift. A task's queries are noted in the first row that has them,
            which is to be that of the release that learned it; no old encoder is asked again.
        ledger: handed from row to row; holds what stands still, and takes on what this row adds to it. The figures are
            those of a row without it. What does not fit, because anything that it depends on has changed, is measured
            afresh.
        report: called with the share that is done.
    """
    row = RecallRow()
    tasks = _laid_out(encoder, galleries, profiles, prior)
    for position, task in enumerate(tasks):
        name = task.gallery.task
        at = {m: routing_accuracy(task.evidence, position, m) for m in _CANDIDATES} if task.texts else None
        row.routing_at[name], row.routing[name] = at, at[1] if at else None
    # A task without captions sounds like the likeliest of the others, and so may sound otherwise beside further ones.
    steady = ledger is not None and bool(profiles.any(axis=1).all())
    passes: list[tuple[_Pass, tuple[str, ...] | None]] = []
    for mode in encoder.modes if modes is None else modes:
        seals = _seals(encoder, tasks, mode, full) if steady else None
        page = ledger.pop(mode, None) if ledger else None  # until it is whole again
        fits = page is not None and seals is not None and page.digests == seals[: len(page.digests)]
        passes.append((_Pass(encoder, tasks, mode, full, page.task_ranks if page and fits else ()), seals))
    work = max(1, sum(measuring.work for measuring, _ in passes))
    done = 0
    for measuring, seals in passes:
        for count in measuring.run():
            done += count
            report(done / work)
        measuring.fill(row, memory)
        if ledger is not None and seals is not None:
            ledger[measuring.mode] = LedgerPage(seals, tuple(measuring.standings))
    return row


def compute_recall(
    texts: Vectors, truth: Sequence[int], videos: Vectors, ids: Sequence[int]
) -> Recall | None:
    """Recall of query vectors ``[Q, dim]`` against video vectors ``[G, dim]`` of these ids."""
    return summarize(rank_by_id(texts @ videos.T, ids, truth)) if len(truth) else None


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
        evidence: ``[Q, T]``, how much each query sounds like every task, in nats: its log weight, but for `settled`.
        settled: ``[Q, 1]``, what makes each query's weights for the tasks up to its own sum to one.
        profile: ``[V]``, the words of the task, which other queries' evidence for it comes from.
        prior: cosine per nat.
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
    settled: Floats
    profile: Vectors
    prior: float

    @property
    def vectors(self) -> Vectors:
        """``[G, dim]``, read anew each time: a shard need not fit into memory beside others."""
        return self.gallery.shard.vectors(self.gallery.shard.ids)

    @cached_property
    def seal(self) -> str:
        """Digest of what the task brings into a row, but for the query encoder."""
        labels = self.gallery.labels or {}
        names = [labels.get(video) for video in self.gallery.shard.ids.tolist()]
        words = [_DEFINITION, self.gallery.task, self.prior, self.texts, names]
        digest = hashlib.sha256(json.dumps(words).encode())
        for values in (self.gallery.shard.ids, self.vectors, self.columns, self.held_out, self.profile):
            digest.update(f"{values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).data)
        return digest.hexdigest()

    def lift(self, part: slice, position: int) -> Floats:
        """``[n, 1]``, what routing adds to the scores of queries of a part in a task's shard, among other shards."""
        return np.asarray(self.prior * self.evidence[part, position : position + 1])

    def settled_lift(self, part: slice, position: int) -> Floats:
        """``[n, 1]``, what it adds to them among other captions."""
        return np.asarray(self.lift(part, position) - self.prior * self.settled[part])


def _laid_out(encoder: Encoder, galleries: Sequence[Gallery], profiles: Vectors, prior: float) -> list[_Task]:
    numbers: dict[str, int] = {}
    tasks: list[_Task] = []
    start = 0
    for gallery, profile in zip(galleries, profiles, strict=True):
        ids = gallery.shard.ids.tolist()
        texts = [query.text for query in gallery.queries]
        place = {video: column for column, video in enumerate(ids)}
        columns = np.array([place[query.vector_id] for query in gallery.queries], np.int64)
        asking, askers = np.unique(columns, return_inverse=True)
        labels: Mapping[int, str] = gallery.labels or {}
        classes = [
            numbers.setdefault(labels[video], len(numbers)) if video in labels else -1 for video in ids
        ]
        chunks = [_evidence(encoder.token_presence(chunk), profiles) for chunk in _chunks(texts, _TEXTS)]
        evidence = np.concatenate(chunks) if chunks else np.empty((0, len(galleries)))
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
                evidence=evidence,
                settled=np.logaddexp.reduce(evidence[:, : len(tasks) + 1], axis=1, keepdims=True),
                profile=profile,
                prior=prior,
            )
        )
        start += int(held_out.sum())
    return tasks


def _evidence(presence: Vectors, profiles: Vectors) -> Floats:
    """``[n, T]``: the log weights of :func:`models.routing.router.log_weights` before they are made to sum to one.

    Added up word by word in double precision: a number does not depend on the tasks that it is computed beside.
    """
    texts, tokens = presence.nonzero()
    values = presence[texts, tokens].astype(np.float64)
    scores: Floats = np.stack(
        [np.bincount(texts, values * profile[tokens], len(presence)) for profile in profiles], axis=1
    )
    fill_silent(scores, silent_tasks(profiles))
    return scores


def _seals(encoder: Encoder, tasks: Sequence[_Task], mode: str, full: bool) -> tuple[str, ...] | None:
    """Digests of all that the figures of each task depend on; None where queries may move."""
    anchors = [encoder.encoding_identity(task.gallery.task, mode) for task in tasks]
    if None in anchors:
        return None
    extent = "full" if full else "lean"
    return tuple(f"{anchor} {task.seal} {extent}" for anchor, task in zip(anchors, tasks, strict=True))


class _Pass:
    """One query mode: every caption meets every video that it has not met, and that may matter to it.

    Args:
        full: see :func:`evaluate_row`.
        standings: of the first tasks, which have met one another. Taken over, and changed.
    """

    def __init__(
        self,
        encoder: Encoder,
        tasks: Sequence[_Task],
        mode: str,
        full: bool,
        standings: Sequence[TaskRanks],
    ) -> None:
        self.mode = mode
        self._full = full
        self._galleries = [name for name in GALLERIES if full or name != "global_raw"]
        self.standings = list(standings)
        self._encoder, self._tasks = encoder, tasks
        self._unmet = [
            list(range(len(standings) if position < len(standings) else 0, len(tasks)))
            for position in range(len(tasks))
        ]

    @property
    def work(self) -> int:
        """Number of pairs of a query and a shard that are to meet."""
        return sum(len(task.texts) * len(unmet) for task, unmet in zip(self._tasks, self._unmet, strict=True))

    def run(self) -> Iterator[int]:
        """Measure; gives what is done of the work, part by part."""
        # First each query under its own task: what it comes to does not depend on later tasks.
        self.standings += [self._begin(position) for position in range(len(self.standings), len(self._tasks))]
        for position, (task, unmet) in enumerate(zip(self._tasks, self._unmet, strict=True)):
            size = max(1, _VECTORS // max(1, len(unmet)))
            for start in range(0, len(task.texts) if unmet else 0, size):
                part = slice(start, min(start + size, len(task.texts)))
                self._meet(position, part)
                yield len(unmet) * (part.stop - part.start)

    def fill(self, row: RecallRow, memory: QueryMemory | None) -> None:
        """Write down what was measured."""
        mode, names = self.mode, [task.gallery.task for task in self._tasks]
        if memory is not None:
            row.drift[mode] = self._drift(memory)
        ranks = [{g: s.ranks[g].ranks() for g in self._galleries} for s in self.standings]
        row.recalls[mode] = {
            g: {name: summarize(found[g]) for name, found in zip(names, ranks, strict=True)}
            for g in self._galleries
        }
        row.pooled[mode] = {
            g: summarize(np.concatenate([found[g] for found in ranks])) for g in self._galleries
        }
        if not self._full:
            return
        row.to_text[mode] = {
            scope: {
                name: summarize(s.captions[scope].ranks())
                for name, s in zip(names, self.standings, strict=True)
            }
            for scope in SCOPES
        }
        row.mean_ap[mode] = {
            scope: {
                name: {k: float(s.alike[scope].at(k).mean()) for k in _PRECISION_AT}
                if s.alike[scope].totals.any()
                else None
                for name, s in zip(names, self.standings, strict=True)
            }
            for scope in SCOPES
        }
        near = np.concatenate([s.nearest.marks[s.nearest.marks >= 0] for s in self.standings])
        held_out = sum(int(task.held_out.sum()) for task in self._tasks)
        row.hubness[mode] = skewness(np.bincount(near, minlength=held_out))

    def _drift(self, memory: QueryMemory) -> dict[str, float | None]:
        """By task, of those that the memory knows; the others are noted."""
        known: dict[str, float | None] = {}
        for task, standing in zip(self._tasks, self.standings, strict=True):
            key = (self.mode, task.gallery.task)
            if key in memory:
                known[task.gallery.task] = mean_angle(memory[key], standing.own)
            memory.setdefault(key, standing.own)
        return known

    def _encode(self, texts: Sequence[str], tasks: Sequence[_Task]) -> Vectors:
        return self._encoder.encode(texts, [task.gallery.task for task in tasks], self.mode)

    def _begin(self, position: int) -> TaskRanks:
        """A task's queries are encoded for its own shard, and find their own videos."""
        task, own, truth = self._tasks[position], np.empty((0, 0), np.float32), np.empty(0)
        if task.texts:
            own = np.concatenate(
                [self._encode(chunk, [task])[:, 0] for chunk in _chunks(task.texts, _VECTORS)]
            )
            videos = task.vectors
            truth = np.einsum("qd,qd->q", own, videos[task.columns], dtype=np.float64)
        every = slice(None)
        lifts: dict[Scope, Floats] = {
            "local": np.zeros(len(truth)),
            "global": task.settled_lift(every, position)[:, 0],
        }
        captions: dict[Scope, Floats] = {scope: np.empty(0) for scope in SCOPES}
        for scope, lift in lifts.items() if self._full else ():
            captions[scope] = np.full(len(task.asking), -np.inf)
            np.maximum.at(captions[scope], task.askers, truth + lift)
        return TaskRanks.begin(
            own,
            truth,
            task.lift(every, position)[:, 0],
            captions,
            galleries=self._galleries,
            nearest=_NEAREST if self._full else 0,
            alike=max(_PRECISION_AT) if self._full else 0,
        )

    def _meet(self, position: int, part: slice) -> None:
        """Some queries of one task meet the videos of the tasks that they have not met."""
        task, standing = self._tasks[position], self.standings[position]
        ranks = {name: standing.ranks[name][part] for name in self._galleries}
        alike = {scope: standing.alike[scope][part] for scope in SCOPES}
        nearest = standing.nearest[part]
        wanted = task.classes[task.columns[part], None]
        for index, vectors in self._vectors(position, part):
            other, captions = self._tasks[index], self.standings[index].captions
            scores = vectors @ other.vectors.T
            held_out = scores[:, other.held_out]
            lift = task.lift(part, index)
            lifted = held_out + lift
            ranks["global"].add(lifted)
            ranks["global_all"].add(scores + lift)
            if index == position:
                ranks["local"].add(held_out)
                ranks["local_all"].add(scores)
            if not self._full:
                continue
            relevant = (wanted == other.classes[other.held_out]) & (wanted >= 0)
            skip = None
            if index == position:
                skip = (
                    np.arange(len(task.asking))[:, None] == task.askers[part]
                )  # their captions do not compete
                if wanted.max() >= 0:
                    alike["local"].add(held_out, relevant)
                captions["local"].add(scores[:, other.asking].T, skip)
            captions["global"].add((scores[:, other.asking] + task.settled_lift(part, index)).T, skip)
            ranks["global_raw"].add(held_out)
            if wanted.max() >= 0:
                alike["global"].add(lifted, relevant)
            nearest.add(lifted, other.start + np.arange(lifted.shape[1]))

    def _vectors(self, position: int, part: slice) -> Iterator[tuple[int, Vectors]]:
        """The shards that some queries of one task are to meet, and the queries' vectors ``[n, dim]`` for each.

        Where a shard's videos cannot come level with a query's own, the vector is zero: whatever it is, none does.
        """
        task, standing, unmet = self._tasks[position], self.standings[position], self._unmet[position]
        own = standing.own[part]
        if position in unmet:
            yield position, own
        others = [index for index in unmet if index != position]
        if self._encoder.is_task_independent(self.mode):
            yield from ((index, own) for index in others)
        elif self._full and others:
            everywhere = self._encode(task.texts[part], [self._tasks[index] for index in others])
            yield from zip(others, everywhere.swapaxes(0, 1), strict=True)
        else:
            level = standing.ranks["global"].truth[part] - TIE
            for index in others:
                chosen = np.flatnonzero(can_reach_score(task.lift(part, index)[:, 0], level))
                if len(chosen):
                    vectors = np.zeros_like(own)
                    texts = [task.texts[part.start + query] for query in chosen]
                    vectors[chosen] = self._encode(texts, [self._tasks[index]])[:, 0]
                    yield index, vectors


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
