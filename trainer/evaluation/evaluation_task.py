"""A task's gallery as arrays, with the routing evidence of its queries, ready for evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from index.arrays import Floats, Ids, Vectors, batches
from models.routing.router import fill_silent, silent_tasks
from trainer.evaluation.gallery import Encoder, Gallery
from trainer.evaluation.rank_ledger import TaskDigest

_TEXTS = 256  # texts per chunk of token presence, which is as wide as the vocabulary
_DEFINITION = 1  # version of what the figures mean; raising it invalidates rank ledgers


@dataclass(frozen=True)
class EvaluationTask:
    """A gallery as arrays, and the routing evidence of its queries.

    Attributes:
        columns: Column of each query's video in the shard, ``[Q]``.
        held_out: Whether each video of the shard is held out, ``[G]``.
        start: Number of held-out videos in all tasks before this one.
        captioned_columns: Columns of the C videos that have a caption, each once, ``[C]``.
        query_videos: Position of each query's video in ``captioned_columns``, ``[Q]``.
        classes: Class number of each video from 0, −1 for none, ``[G]``.
        evidence: Log weight in nats of each query for each of T tasks, up to a constant per query, ``[Q, T]``.
        normalizer: Log of each query's total weight over the tasks up to its own, ``[Q, 1]``.
        profile: Routing profile over V tokens, ``[V]``.
        prior: Cosine per nat of routing evidence.
    """

    gallery: Gallery
    texts: list[str]
    columns: Ids
    held_out: npt.NDArray[np.bool_]
    start: int
    captioned_columns: Ids
    query_videos: Ids
    classes: Ids
    evidence: Floats
    normalizer: Floats
    profile: Vectors
    prior: float

    @property
    def vectors(self) -> Vectors:
        """Vectors of the shard, ``[G, dim]``; read on every access, since all shards may not fit into memory."""
        return self.gallery.shard.vectors(self.gallery.shard.ids)

    @cached_property
    def gallery_digest(self) -> str:
        """Digest of everything but the query encoder that the task's videos contribute to a row."""
        labels = self.gallery.labels or {}
        names = [labels.get(video) for video in self.gallery.shard.ids.tolist()]
        description = [_DEFINITION, self.gallery.task, self.prior, names]
        return _digest(description, self.gallery.shard.ids, self.vectors, self.held_out, self.profile)

    @cached_property
    def query_digest(self) -> str:
        """Digest of everything that the task's queries contribute to a row; empty without queries."""
        vectors = self.gallery.query_vectors
        known = [] if vectors is None else [vectors]
        return _digest([self.texts], self.columns, *known) if self.texts else ""

    @cached_property
    def query_set(self) -> str:
        """Digest of the queries' texts and videos, in their order."""
        return _digest([[query.text, int(query.vector_id)] for query in self.gallery.queries])

    def video_prior(self, part: slice, position: int) -> Floats:
        """Compute the routing term ``[n, 1]`` in some queries' scores for the task at ``position``."""
        return np.asarray(self.prior * self.evidence[part, position : position + 1])

    def caption_prior(self, part: slice, position: int) -> Floats:
        """Compute the same term for ranking captions, normalized over the tasks up to the queries' own."""
        return np.asarray(self.video_prior(part, position) - self.prior * self.normalizer[part])


def build_evaluation_tasks(
    encoder: Encoder, galleries: Sequence[Gallery], profiles: Vectors, prior: float
) -> list[EvaluationTask]:
    """Build one :class:`EvaluationTask` per gallery.

    Args:
        encoder: Query encoder of the release.
        galleries: Galleries of all learned tasks, in order.
        profiles: Routing profiles ``[T, V]`` of the tasks, in the same order.
        prior: Cosine per nat of routing evidence.
    """
    class_numbers: dict[str, int] = {}
    names = [gallery.task for gallery in galleries]
    tasks: list[EvaluationTask] = []
    start = 0
    for gallery, profile in zip(galleries, profiles, strict=True):
        ids = gallery.shard.ids.tolist()
        texts = [query.text for query in gallery.queries]
        column_of = {video: column for column, video in enumerate(ids)}
        columns = np.array([column_of[query.vector_id] for query in gallery.queries], np.int64)
        captioned_columns, query_videos = np.unique(columns, return_inverse=True)
        labels: Mapping[int, str] = gallery.labels or {}
        classes = [
            class_numbers.setdefault(labels[video], len(class_numbers)) if video in labels else -1
            for video in ids
        ]
        parts = [_evidence(encoder, chunk, names, profiles) for chunk in batches(texts, _TEXTS)]
        evidence = np.concatenate(parts) if parts else np.empty((0, len(galleries)))
        held_out = np.isin(gallery.shard.ids, gallery.held_out)
        tasks.append(
            EvaluationTask(
                gallery=gallery,
                texts=texts,
                columns=columns,
                held_out=held_out,
                start=start,
                captioned_columns=captioned_columns,
                query_videos=query_videos,
                classes=np.array(classes, np.int64),
                evidence=evidence,
                normalizer=np.logaddexp.reduce(evidence[:, : len(tasks) + 1], axis=1, keepdims=True),
                profile=profile,
                prior=prior,
            )
        )
        start += int(held_out.sum())
    return tasks


def evaluation_digests(
    encoder: Encoder, tasks: Sequence[EvaluationTask], mode: str, full: bool
) -> tuple[TaskDigest, ...] | None:
    """Digest all that each task's figures depend on; None if later releases may change a task's queries."""
    encodings = [encoder.encoding_identity(task.gallery.task, mode) for task in tasks]
    if None in encodings:
        return None
    extent = "full" if full else "lean"
    return tuple(
        TaskDigest(f"{encoding} {encoder.routing_identity} {task.gallery_digest} {extent}", task.query_digest)
        for encoding, task in zip(encodings, tasks, strict=True)
    )


def _digest(description: list[Any], *arrays: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256(json.dumps(description).encode())
    for values in arrays:
        digest.update(f"{values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _evidence(encoder: Encoder, queries: Sequence[str], names: Sequence[str], profiles: Vectors) -> Floats:
    """Compute log weights ``[n, T]`` as :func:`models.routing.router.log_weights` does, not normalized over tasks.

    They are summed token by token in double precision, so that no value depends on the number of other tasks.
    """
    presence = encoder.token_presence(queries)
    texts, tokens = presence.nonzero()
    values = presence[texts, tokens].astype(np.float64)
    scores: Floats = np.stack(
        [np.bincount(texts, values * profile[tokens], len(presence)) for profile in profiles], axis=1
    )
    other = encoder.routing_evidence(encoder.tokenize(queries), names)
    if other is not None:
        scores += other
    fill_silent(scores, silent_tasks(profiles))
    return scores
