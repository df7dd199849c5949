"""Recall of searches as the service answers them: the served release, all galleries.

Every mean is weighted by queries, and every share has its number of queries and a confidence interval. A library of one
large and one tiny domain therefore has nearly the recall of the large one.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
from cachetools import LRUCache, cached

from cinestrata_schemas.library import MeasuredShare, ServedRecall, UnfoundDomain
from service.catalog.database import session_scope
from service.library.recall.proportion_intervals import wilson_interval
from service.library.recall.recall_cells import RecallCells, query_mean, read_recall_cells
from service.library.recall.recall_losses import FEW_QUERIES, GALLERIES, measured_losses
from service.library.served_order import last_served_order
from service.storage.index_manifest import published_manifest

_NAMED = 5


def read_served_recall(served: RecallCells | None = None) -> ServedRecall:
    """Recall of the served release on the domains that it has learned.

    Args:
        served: Cells of all galleries, see :func:`until_served`; None: they are read.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    return _served_recall(served or until_served(read_recall_cells(GALLERIES)))


def until_served(cells: RecallCells) -> RecallCells:
    """Return the cells of the releases and domains up to the served release.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    manifest, _ = published_manifest()
    with session_scope() as session:
        order = last_served_order(session, manifest)
    return cells if order is None else cells.until(order)


@cached(LRUCache(8), key=lambda cells: cells.version, lock=Lock())
def _served_recall(cells: RecallCells) -> ServedRecall:
    union = cells.galleries["global"]
    newest = cells.releases[-1].order if cells.releases else 0
    accuracy = union.router_accuracy(newest)
    unfound, unfound_all = _unfound(cells, "global"), _unfound(cells, "global_all")
    queries = cells.queries("local")[-1:].ravel()
    return ServedRecall(
        mode=cells.mode,
        domains=len(cells.tasks),
        domains_with_few_queries=int(((queries > 0) & (queries < FEW_QUERIES)).sum()),
        recall={gallery: _share(cells, gallery) for gallery in GALLERIES},
        loss=measured_losses(cells),
        router_accuracy=None if accuracy is None else _measured_share(accuracy, int(union.routable[newest])),
        unfound_domains=len(unfound),
        unfound=unfound[:_NAMED],
        unfound_all_domains=len(unfound_all),
        unfound_all=unfound_all[:_NAMED],
    )


def _share(cells: RecallCells, gallery: str) -> MeasuredShare | None:
    row, queries = cells.matrix(gallery)[-1:], cells.queries(gallery)[-1:]
    count = int(queries.sum())
    return _measured_share(float(query_mean(row, queries)[0]), count) if count else None


def _measured_share(share: float, queries: int) -> MeasuredShare:
    low, high = wilson_interval(share, queries)
    return MeasuredShare(share=share, queries=queries, low=low, high=high)


def _unfound(cells: RecallCells, gallery: str) -> list[UnfoundDomain]:
    """Domains without a query that ranks its video first in a gallery, those with most queries first."""
    row, queries = cells.matrix(gallery)[-1:].ravel(), cells.queries(gallery)[-1:].ravel()
    columns = sorted(np.flatnonzero((row == 0) & (queries > 0)), key=lambda column: -queries[column])
    return [
        UnfoundDomain(task_id=task.id, task=task.name, queries=int(queries[column]))
        for column, task in ((column, cells.tasks[column]) for column in columns)
    ]
