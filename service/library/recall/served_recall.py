"""Recall of searches as the service answers them: the served query mode, the newest release, all galleries.

Every mean is weighed by queries, and every share has its number of queries and a confidence interval. A library of one
large and one tiny domain therefore has nearly the recall of the large one.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached

from service.core.schemas import Gallery, MeasuredLoss, MeasuredShare, ServedRecall, UnfoundDomain
from service.library.recall.proportion_intervals import difference_interval, wilson_interval
from service.library.recall.recall_cells import RecallCells, read_recall_cells

__all__ = ["FEW_QUERIES", "GALLERIES", "query_mean", "read_served_recall"]

GALLERIES: tuple[Gallery, ...] = ("local", "global", "local_all", "global_all")
FEW_QUERIES = 20  # with fewer, the interval of a share of one half is wider than 40 points
_NAMED = 5


def read_served_recall() -> ServedRecall:
    """Recall of the newest release in the query mode of searches.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    return _served_recall(read_recall_cells(None, GALLERIES))


@cached(LRUCache(8), key=lambda cells: (cells.version, cells.mode), lock=Lock())
def _served_recall(cells: RecallCells) -> ServedRecall:
    union = cells.galleries["global"]
    newest = cells.releases[-1].order if cells.releases else 0
    accuracy = union.router_accuracy(newest)
    unfound = _unfound(cells)
    queries = cells.queries("local")[-1:].ravel()
    return ServedRecall(
        mode=cells.mode,
        domains=len(cells.tasks),
        domains_with_few_queries=int(((queries > 0) & (queries < FEW_QUERIES)).sum()),
        recall={gallery: _share(cells, gallery) for gallery in GALLERIES},
        loss={"local": _loss(cells, "local"), "global": _loss(cells, "global")},
        router_accuracy=None if accuracy is None else _measured_share(accuracy, int(union.routable[newest])),
        unfound_domains=len(unfound),
        unfound=unfound[:_NAMED],
    )


def query_mean(values: npt.NDArray[np.float64], queries: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Mean of the measured cells of each row ``[R, T]``, weighed by queries ``[R, T]``; NaN without measured cells."""
    weights = np.where(np.isnan(values), 0, queries)
    total = weights.sum(axis=1)
    sums = (np.nan_to_num(values) * weights).sum(axis=1)
    return np.asarray(np.where(total > 0, sums / np.maximum(total, 1), np.nan))


def _share(cells: RecallCells, gallery: str) -> MeasuredShare | None:
    row, queries = cells.matrix(gallery)[-1:], cells.queries(gallery)[-1:]
    count = int(queries[~np.isnan(row)].sum())
    return _measured_share(float(query_mean(row, queries)[0]), count) if count else None


def _measured_share(share: float, queries: int) -> MeasuredShare:
    low, high = wilson_interval(share, queries)
    return MeasuredShare(share=share, queries=queries, low=low, high=high)


def _loss(cells: RecallCells, gallery: str) -> MeasuredLoss | None:
    """Recall of earlier domains right after they were learned, minus that of the newest release."""
    matrix, queries = cells.matrix(gallery), cells.queries(gallery)
    rows = {task.order: row for row, task in enumerate(cells.releases)}
    pairs = [
        (matrix[rows[task.order], column], matrix[-1, column], int(queries[-1, column]))
        for column, task in enumerate(cells.tasks)
        if rows.get(task.order, len(matrix) - 1) < len(matrix) - 1
    ]
    measured = [pair for pair in pairs if not np.isnan(pair[:2]).any() and pair[2]]
    if not measured:
        return None
    learned, now, weights = (np.array(column, float) for column in zip(*measured, strict=True))
    total = int(weights.sum())
    before, after = (float((values * weights).sum() / total) for values in (learned, now))
    low, high = difference_interval(before, after, total)
    return MeasuredLoss(
        loss=before - after,
        domains=len(measured),
        queries=total,
        low=low,
        high=high,
        learned=before,
        now=after,
    )


def _unfound(cells: RecallCells) -> list[UnfoundDomain]:
    """Domains without a query that ranks its video first among all shards, those with most queries first."""
    row, queries = cells.matrix("global")[-1:].ravel(), cells.queries("global")[-1:].ravel()
    columns = sorted(np.flatnonzero((row == 0) & (queries > 0)), key=lambda column: -queries[column])
    return [
        UnfoundDomain(task_id=task.id, task=task.name, queries=int(queries[column]))
        for column, task in ((column, cells.tasks[column]) for column in columns)
    ]
