"""Probe queries of a new release: its search results, for readers of the release to compare theirs with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from index.arrays import Ids, Vectors
from models.encoders.query_encoder import QueryEncoder
from models.releases.probe_queries import MAX_PROBED_OLDER_TASKS, PROBE_ANCHORS, PROBE_TEXTS, ProbeQueries
from trainer.evaluation.gallery import ShardVectors


def make_probes(
    encoder: QueryEncoder,
    newest: str,
    ids: Ids,
    vectors: Vectors,
    older: Mapping[str, ShardVectors],
) -> ProbeQueries:
    """Search with all probe texts in the newest task, and with one in each of the latest older tasks.

    This costs one scan of the new vectors, and reads a few rows of each older shard.

    Args:
        ids: Vector IDs ``[G]`` of the task's videos.
        vectors: Vectors ``[G, dim]`` of these videos, as they are stored.
        older: Shards of earlier tasks by ID, oldest first.
    """
    mode = encoder.modes[-1]
    queries = encoder.encode(PROBE_TEXTS, [newest], mode)[:, 0]
    scores = queries @ vectors.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :PROBE_ANCHORS]
    results = [(ids[rows], scores[i, rows]) for i, rows in enumerate(best)]
    texts, tasks = list(PROBE_TEXTS), [newest] * len(PROBE_TEXTS)
    latest = list(older)[-MAX_PROBED_OLDER_TASKS:]
    if latest:
        older_queries = encoder.encode(PROBE_TEXTS[:1], latest, mode)[0]
        queries = np.concatenate([queries, older_queries])
        texts, tasks = [*texts, *PROBE_TEXTS[:1] * len(latest)], [*tasks, *latest]
        for task, query in zip(latest, older_queries, strict=True):
            shard_ids = older[task].ids
            anchors = shard_ids[np.unique(np.linspace(0, len(shard_ids) - 1, PROBE_ANCHORS).astype(np.int64))]
            results.append((anchors, older[task].vectors(anchors) @ query))
    anchor_ids = np.full((len(results), PROBE_ANCHORS), -1, np.int64)
    anchor_scores = np.zeros((len(results), PROBE_ANCHORS), np.float32)
    for row, (anchors, cosines) in enumerate(results):
        anchor_ids[row, : len(anchors)] = anchors
        anchor_scores[row, : len(anchors)] = cosines
    return ProbeQueries(mode, texts, tasks, queries.astype(np.float16), anchor_ids, anchor_scores)
