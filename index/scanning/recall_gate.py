"""The recall gate: choose a large segment's ANN structure by measuring with text queries.

A segment with more rows than :attr:`AnnPolicy.exact_rows` gets the first kind of structure that passes. A structure
built on videos may be useless for texts: text vectors lie in another region, and their nearest videos are spread over
many lists. The gate therefore takes training captions as queries, measures recall against exact search, and keeps the
smallest parameter that reaches the target. If no kind reaches it with at most half the work of an exact scan, the
segment is scanned exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from index.arrays import Scores, Vectors
from index.files.manifest_format import AnnStructure
from index.scanning.ann_index import DEPTH, MIN_PARAMETER, AnnIndex, build_ann
from index.scanning.exact_scan import ExactScan
from index.scanning.search_options import AnnPolicy

GATE_DEPTHS = (10, DEPTH)  # depths at which recall must reach the target

_MIN_QUERIES, _MAX_QUERIES = 100, 1000
_SEED = 1234


@dataclass(frozen=True)
class GateResult:
    """What the recall gate decided.

    Attributes:
        structure: Structure to search with, and its measurement; kind ``flat`` if none passed.
        index: Its FAISS index; None for kind ``flat``.
        queries: Queries of the measurement, ``float32 [n, dim]``.
    """

    structure: AnnStructure
    index: Any | None
    queries: Vectors


def choose_structure(
    exact: ExactScan, queries: Vectors, policy: AnnPolicy, heartbeat: Callable[[], object] = lambda: None
) -> GateResult | None:
    """Build ANN structures until one passes the recall gate.

    Args:
        exact: The segment's vectors.
        queries: ``float32 [n, dim]``, vectors of training captions; at most a thousand of them are used.
        policy: Kinds to try, and the required recall.
        heartbeat: Called repeatedly; building takes minutes.

    Returns:
        None, without building anything, for a small segment or too few queries.
    """
    if exact.count <= max(policy.exact_rows, DEPTH) or len(queries) < _MIN_QUERIES:
        return None
    chosen = np.sort(np.random.default_rng(_SEED).permutation(len(queries))[:_MAX_QUERIES])
    queries = np.ascontiguousarray(queries[chosen], np.float32)
    scores = np.stack([hits.scores for hits in exact.search_many(queries, DEPTH)])
    last_scores = [scores[:, depth - 1] for depth in GATE_DEPTHS]
    refused: dict[str, float] = {}

    def result(kind: str, parameter: int, recall: float, work: float, index: Any | None) -> GateResult:
        structure = AnnStructure(
            kind, parameter, recall, policy.target, DEPTH, len(queries), exact.count, work, refused
        )
        return GateResult(structure, index, queries)

    for kind in policy.kinds:
        index = build_ann(kind, exact, heartbeat)
        ann = AnnIndex(kind, index, exact)
        recall_at = partial(measure_recall, ann, queries, last_scores)
        recall = 0.0
        for parameter in ann.parameters(queries):
            heartbeat()
            recall = recall_at(parameter)
            if recall >= policy.target:
                parameter, recall = _smallest_passing(
                    recall_at, MIN_PARAMETER[kind], parameter, recall, policy.target
                )
                return result(kind, parameter, recall, ann.work(queries, parameter), index)
        refused[kind] = recall
    return result("flat", 0, 1.0, 1.0, None)


def measure_recall(ann: AnnIndex, queries: Vectors, last_scores: Sequence[Scores], parameter: int) -> float:
    """Measure a structure's recall: the minimum over :data:`GATE_DEPTHS`.

    A result that ties with the last exact result counts as correct.

    Args:
        queries: ``float32 [n, dim]``.
        last_scores: For each depth, the exact score of each query's last result, ``float32 [n]``.
        parameter: Search effort.
    """
    found = [ann.search(query, parameter).scores for query in queries]
    return min(
        sum(int((scores[:depth] >= last).sum()) for scores, last in zip(found, lasts, strict=True))
        / (depth * len(queries))
        for depth, lasts in zip(GATE_DEPTHS, last_scores, strict=True)
    )


def _smallest_passing(
    recall_at: Callable[[int], float], minimum: int, passing: int, recall: float, target: float
) -> tuple[int, float]:
    """Bisect below a passing parameter for the smallest one that reaches the target, and return it with its recall."""
    failing = max(passing // 2, minimum - 1)
    while passing - failing > 1:
        middle = (passing + failing) // 2
        measured = recall_at(middle)
        if measured >= target:
            passing, recall = middle, measured
        else:
            failing = middle
    return passing, recall
