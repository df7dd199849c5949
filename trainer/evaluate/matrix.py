"""One row of the recall matrix: how release i finds the videos of every task t ≤ i.

Four galleries. *Local*: the task's own shard, known task, one query vector. *Global*: the union of all
shards, unknown task; every shard is asked with its own query vector, and the cosines are merged, lifted by what
routing says of each task. Both hold the held-out videos alone, as the papers measure, or all videos
(``local_all``, ``global_all``).

Only stored vectors are read: videos of earlier tasks may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from models.routing import PRIOR, log_weights
from trainer.errors import EvaluationError
from trainer.evaluate.metrics import RankCount, Recall, rank_by_id, recall_at, summarise

__all__ = [
    "GALLERIES",
    "Encoder",
    "Gallery",
    "GalleryName",
    "Query",
    "Row",
    "ShardVectors",
    "evaluate_row",
    "recall_of",
    "routing_accuracy",
]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
Item = TypeVar("Item")
GalleryName = Literal["local", "global", "local_all", "global_all"]
GALLERIES: tuple[GalleryName, ...] = ("local", "global", "local_all", "global_all")

_VECTORS = 2048  # query vectors made at a time: memory stays flat however many queries and tasks there are


class Encoder(Protocol):
    """What a release's query encoder offers (:class:`models.query_encoder.QueryEncoder`)."""

    @property
    def modes(self) -> tuple[str, ...]: ...

    def words(self, texts: Sequence[str]) -> Vectors: ...

    def encode(self, texts: Sequence[str], tasks: Sequence[str], mode: str) -> Vectors: ...


class ShardVectors(Protocol):
    """What a shard offers."""

    ids: Ids

    def vectors(self, ids: Ids) -> Vectors: ...


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
        queries: captions of held-out videos; by convention the first caption of each.
    """

    task: str
    shard: ShardVectors
    held_out: Ids
    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        strangers = {query.vector_id for query in self.queries} - {int(i) for i in self.held_out}
        if strangers:
            raise EvaluationError(f"task {self.task}: a query asks for video {min(strangers)}, not held out")


@dataclass
class Row:
    """Measures of one release.

    Attributes:
        recalls: by mode, gallery and task id; None for a task without queries.
        routing: by task id, share of its queries, 0..1, that sound most like their own task.
    """

    recalls: dict[str, dict[GalleryName, dict[str, Recall | None]]] = field(default_factory=dict)
    routing: dict[str, float | None] = field(default_factory=dict)


def evaluate_row(
    encoder: Encoder,
    galleries: Sequence[Gallery],
    profiles: Vectors,
    *,
    prior: float = PRIOR,
    modes: Sequence[str] | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> Row:
    """Measure a release.

    Args:
        encoder: its query encoder.
        galleries: of every task it has learned, in order.
        profiles: ``[T, V]`` of the tasks, in the same order.
        prior: cosine per nat of routing evidence, added to the scores of a union gallery; 0 merges raw cosines.
        modes: query modes; all that the release offers by default.
        report: called with the share that is done.
    """
    row = Row()
    chosen = list(encoder.modes if modes is None else modes)
    work = max(1, len(chosen) * sum(len(gallery.queries) for gallery in galleries))
    done = 0
    for mode in chosen:
        table: dict[GalleryName, dict[str, Recall | None]] = {name: {} for name in GALLERIES}
        for position, gallery in enumerate(galleries):
            ranks: dict[GalleryName, list[npt.NDArray[np.floating]]] = {name: [] for name in GALLERIES}
            for chunk in _chunks(gallery.queries, max(1, _VECTORS // len(galleries))):
                ranked = _rank_chunk(encoder, galleries, position, chunk, mode, profiles, prior)
                for name, values in ranked.items():
                    ranks[name].append(values)
                done += len(chunk)
                report(done / work)
            for name, parts in ranks.items():
                table[name][gallery.task] = summarise(np.concatenate(parts)) if parts else None
        row.recalls[mode] = table
    for position, gallery in enumerate(galleries):
        row.routing[gallery.task] = routing_accuracy(
            encoder, [query.text for query in gallery.queries], profiles, position
        )
    return row


def recall_of(texts: Vectors, truth: Sequence[int], videos: Vectors, ids: Sequence[int]) -> Recall | None:
    """Recall of query vectors ``[Q, dim]`` against video vectors ``[G, dim]`` of these ids."""
    return summarise(rank_by_id(texts @ videos.T, ids, truth)) if len(truth) else None


def routing_accuracy(encoder: Encoder, texts: Sequence[str], profiles: Vectors, own: int) -> float | None:
    """Routing accuracy@1, 0..1: how often ``own`` is the task that a text sounds most like.

    An equally likely task counts against us. None without texts.
    """
    ranks = [
        rank_by_id(log_weights(encoder.words(chunk), profiles), range(len(profiles)), [own] * len(chunk))
        for chunk in _chunks(texts, _VECTORS)
    ]
    return recall_at(np.concatenate(ranks), 1) if ranks else None


def _rank_chunk(
    encoder: Encoder,
    galleries: Sequence[Gallery],
    position: int,
    queries: Sequence[Query],
    mode: str,
    profiles: Vectors,
    prior: float,
) -> dict[GalleryName, npt.NDArray[np.floating]]:
    """Ranks of some queries of one task in all four galleries; one batched encoding, one pass over the shards."""
    texts = [query.text for query in queries]
    encoded = encoder.encode(texts, [gallery.task for gallery in galleries], mode)  # [n, T, dim]
    own = galleries[position]
    own_scores = encoded[:, position] @ own.shard.vectors(own.shard.ids).T  # once, so that truth meets itself
    columns = {int(video): column for column, video in enumerate(own.shard.ids)}
    truth = own_scores[np.arange(len(queries)), [columns[query.vector_id] for query in queries]]
    evidence = prior * log_weights(encoder.words(texts), profiles)  # [n, T]
    lifted = truth + evidence[:, position]
    counts = {name: RankCount(truth if name.startswith("local") else lifted) for name in GALLERIES}
    for index, gallery in enumerate(galleries):
        vectors = gallery.shard.vectors(gallery.shard.ids)
        scores = own_scores if index == position else encoded[:, index] @ vectors.T
        held_out = np.isin(gallery.shard.ids, gallery.held_out)
        if index == position:
            counts["local"].add(scores[:, held_out])
            counts["local_all"].add(scores)
        weighed = scores + evidence[:, index : index + 1]
        counts["global"].add(weighed[:, held_out])
        counts["global_all"].add(weighed)
    return {name: count.ranks() for name, count in counts.items()}


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
