"""The probe queries of a release that is about to be laid down: its own answers, for its readers to compare with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from models.encoders.query_encoder import QueryEncoder
from models.releases.probe_queries import MAX_PROBED_OLDER_TASKS, PROBE_ANCHORS, PROBE_TEXTS, ProbeQueries
from trainer.evaluation.gallery import ShardVectors

__all__ = ["make_probes"]

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


def make_probes(
    encoder: QueryEncoder,
    newest: str,
    ids: Ids,
    vectors: Vectors,
    older: Mapping[str, ShardVectors],
    mode: str,
) -> ProbeQueries:
    """All sentences under the newest task, one under each of the latest older tasks.

    Publishing costs one scan of the new vectors for them, and reads a few rows of each older shard.

    Args:
        encoder: of the release, its newest task the last.
        newest: id of the task that the release is made for.
        ids, vectors: ``[G]`` and ``[G, dim]`` of its videos, the vectors as they are stored.
        older: the shards of the tasks before it, by id, in learned order.
        mode: query mode, the one that will be served.
    """
    queries = encoder.encode(PROBE_TEXTS, [newest], mode)[:, 0]
    scores = queries @ vectors.T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :PROBE_ANCHORS]
    found = [(ids[rows], scores[i, rows]) for i, rows in enumerate(best)]
    texts, tasks = list(PROBE_TEXTS), [newest] * len(PROBE_TEXTS)
    latest = list(older)[-MAX_PROBED_OLDER_TASKS:]
    if latest:
        under = encoder.encode(PROBE_TEXTS[:1], latest, mode)[0]
        queries = np.concatenate([queries, under])
        texts, tasks = [*texts, *PROBE_TEXTS[:1] * len(latest)], [*tasks, *latest]
        for task, query in zip(latest, under, strict=True):
            every = older[task].ids
            chosen = every[np.unique(np.linspace(0, len(every) - 1, PROBE_ANCHORS).astype(np.int64))]
            found.append((chosen, older[task].vectors(chosen) @ query))
    table = np.full((len(found), PROBE_ANCHORS), -1, np.int64)
    marks = np.zeros((len(found), PROBE_ANCHORS), np.float32)
    for row, (anchors, cosines) in enumerate(found):
        table[row, : len(anchors)], marks[row, : len(anchors)] = anchors, cosines
    return ProbeQueries(mode, texts, tasks, queries.astype(np.float16), table, marks)
