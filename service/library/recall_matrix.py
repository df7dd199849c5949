"""The recall matrix A[i, t] from the catalog, and measures derived from it.

:mod:`models.forgetting_measures` defines the measures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import hypot, sqrt
from threading import Lock
from typing import Any

import numpy as np
from cachetools import LRUCache, cached
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas import library
from cinestrata_schemas.choice_types import Gallery
from models.forgetting_measures import backward_forgetting, forgetting_rate, harmonic_mean
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Release, Task
from service.library.recall_cells import (
    GALLERIES,
    LearnedTask,
    RecallCells,
    nullable,
    query_mean,
    read_recall_cells,
)
from service.storage.index_manifest import published_manifest

FEW_QUERIES = 20  # with fewer, the interval of a share of one half is wider than 40 points
DEFAULT_ROWS = 50
DEFAULT_DOMAINS = 100

_NAMED = 5
_Z = 1.959964  # 97.5th percentile of the normal distribution: intervals cover 95 %


@cached(LRUCache(8), key=lambda cells: cells.version, lock=Lock())
def _forgetting_measures(cells: RecallCells) -> dict[str, Any]:
    """Compute the measures from the cells of the local and the global gallery."""
    local, union = (nullable(cells.square(gallery)) for gallery in ("local", "global"))
    return {
        "bwf_local": backward_forgetting(local),
        "bwf_global": backward_forgetting(union),
        "fr": forgetting_rate(local),
        "hm": harmonic_mean(local),
    }


def read_recall_matrix(
    *,
    rows: int = DEFAULT_ROWS,
    first_release: int | None = None,
    first_domain: int = 1,
    domains: int = DEFAULT_DOMAINS,
) -> library.RecallMatrix:
    """Read a window of the recall matrix, and the measures of the whole matrix.

    The first row and column are counted from 1; without ``first_release``, the window ends with the newest release.
    """
    cells = read_recall_cells()
    served = until_served(cells)
    first_row = max(len(cells.releases) - rows, 0) if first_release is None else first_release - 1
    window = slice(first_row, first_row + rows), slice(first_domain - 1, first_domain - 1 + domains)
    releases, shown = cells.releases[window[0]], cells.tasks[window[1]]
    served_recall = _served_recall(served)
    zero_shot = cells.galleries["local"].r1[0]
    over_time = {
        gallery: query_mean(cells.matrix(gallery), cells.queries(gallery)) for gallery in ("local", "global")
    }
    return library.RecallMatrix(
        tasks=[task.name for task in shown],
        task_ids=[task.id for task in shown],
        releases=[task.release for task in releases],
        mode=cells.mode,
        **{f"matrix_{gallery}": nullable(cells.matrix(gallery)[window]) for gallery in GALLERIES},
        learned={gallery: nullable(cells.when_learned(gallery)[window[1]]) for gallery in GALLERIES},
        **_forgetting_measures(served),
        zero_shot=nullable(zero_shot[[task.order for task in shown]]),
        queries=cells.queries("local")[window].tolist(),
        recall_over_time_local=nullable(over_time["local"]),
        recall_over_time_global=nullable(over_time["global"]),
        router_accuracy=[cells.galleries["global"].router_accuracy(task.order) for task in cells.releases],
        held_out=[task.held_out for task in shown],  # type: ignore[misc]
        after=[task.name for task in releases],
        newest=_newest_row(cells, shown),
        losses=served_recall.loss,
        served=served_recall,
        first_release=first_row + 1,
        first_domain=first_domain,
        domains=len(cells.tasks),
    )


def _newest_row(
    cells: RecallCells, tasks: Sequence[LearnedTask]
) -> dict[str, list[library.RecallFigures | None]]:
    if not cells.releases:
        return {gallery: [] for gallery in GALLERIES}
    newest = cells.releases[-1].order
    with session_scope() as session:
        rows = session.scalars(select(Recall).where(Recall.release_order == newest)).all()
    figures = {(row.gallery, row.task_order): recall_figures(row) for row in rows}
    for task in tasks:
        # A domain with another encoder has its figures from the last release of that encoder.
        if ("local", task.order) not in figures and cells.galleries["local"].queries[newest, task.order]:
            figures |= {(gallery, task.order): row for gallery, row in newest_recall(task.id).items()}
    return {gallery: [figures.get((gallery, task.order)) for task in tasks] for gallery in GALLERIES}


def newest_recall(task_id: str) -> dict[str, library.RecallFigures]:
    """Look up the recall of a domain's held-out captions by gallery, with the newest served release measured."""
    with session_scope() as session:
        last = last_served_order(session)
        order = select(Task.learned_order).where(Task.id == task_id).scalar_subquery()
        measured = (Recall.task_order == order) & (Recall.release_order > 0)
        if last is not None:
            measured &= Recall.release_order <= last
        newest = select(func.max(Recall.release_order)).where(measured).scalar_subquery()
        rows = session.scalars(select(Recall).where(measured, Recall.release_order == newest))
        return {row.gallery: recall_figures(row) for row in rows}


def recall_figures(cell: Recall) -> library.RecallFigures:
    """Convert a cell to figures, with the confidence interval of its Recall@1."""
    low, high = wilson_interval(cell.r1, max(1, cell.queries))
    return library.RecallFigures(
        queries=cell.queries, r1=cell.r1, r5=cell.r5, r10=cell.r10, r1_low=low, r1_high=high
    )


def read_served_recall() -> library.ServedRecall:
    """Compute the served release's recall on the domains that it has learned, with means weighted by queries."""
    return _served_recall(until_served(read_recall_cells()))


def until_served(cells: RecallCells) -> RecallCells:
    """Restrict the cells to releases and domains up to the served release."""
    with session_scope() as session:
        order = last_served_order(session)
    return cells if order is None else cells.until(order)


@cached(LRUCache(8), key=lambda cells: cells.version, lock=Lock())
def _served_recall(cells: RecallCells) -> library.ServedRecall:
    union = cells.galleries["global"]
    newest = cells.releases[-1].order if cells.releases else 0
    accuracy = union.router_accuracy(newest)
    unfound, unfound_all = _unfound(cells, "global"), _unfound(cells, "global_all")
    queries = cells.queries("local")[-1:].ravel()
    return library.ServedRecall(
        mode=cells.mode,
        domains=len(cells.tasks),
        domains_with_few_queries=int(((queries > 0) & (queries < FEW_QUERIES)).sum()),
        recall={gallery: _share(cells, gallery) for gallery in GALLERIES},
        loss={gallery: _measured_loss(cells, gallery) for gallery in GALLERIES},
        router_accuracy=None if accuracy is None else _measured_share(accuracy, int(union.routable[newest])),
        unfound_domains=len(unfound),
        unfound=unfound[:_NAMED],
        unfound_all_domains=len(unfound_all),
        unfound_all=unfound_all[:_NAMED],
    )


def _share(cells: RecallCells, gallery: Gallery) -> library.MeasuredShare | None:
    row, queries = cells.matrix(gallery)[-1:], cells.queries(gallery)[-1:]
    count = int(queries.sum())
    return _measured_share(float(query_mean(row, queries)[0]), count) if count else None


def _measured_share(share: float, queries: int) -> library.MeasuredShare:
    low, high = wilson_interval(share, queries)
    return library.MeasuredShare(share=share, queries=queries, low=low, high=high)


def _unfound(cells: RecallCells, gallery: Gallery) -> list[library.UnfoundDomain]:
    """List the domains in which no query ranks its video first in a gallery, most queries first."""
    row, queries = cells.matrix(gallery)[-1:].ravel(), cells.queries(gallery)[-1:].ravel()
    columns = sorted(np.flatnonzero((row == 0) & (queries > 0)), key=lambda column: -queries[column])
    return [
        library.UnfoundDomain(task_id=task.id, task=task.name, queries=int(queries[column]))
        for column, task in ((column, cells.tasks[column]) for column in columns)
    ]


def last_served_order(session: Session) -> int | None:
    """Find the learned order of the last domain that is searched; None if all learned domains are."""
    manifest, _ = published_manifest()
    if manifest.pinned is None:
        return None
    return session.scalar(select(Release.learned_order).where(Release.id == manifest.pinned))


def domain_losses(cells: RecallCells, gallery: Gallery) -> list[library.DomainLoss]:
    """Compute the loss of each measured domain that was learned before the newest release."""
    if not cells.releases:
        return []
    learned, now = cells.when_learned(gallery), cells.matrix(gallery)[-1]
    queries = cells.queries(gallery)[-1]
    omitted = _changed_domains(cells, gallery) if is_frozen(cells, gallery) else set[int]()
    return [
        library.DomainLoss(
            task_id=task.id,
            task=task.name,
            loss=float(learned[t] - now[t]),
            queries=int(queries[t]),
            learned=float(learned[t]),
            now=float(now[t]),
        )
        for t, task in enumerate(cells.tasks)
        if task.order != cells.releases[-1].order
        and task.order not in omitted
        and queries[t]
        and not np.isnan(learned[t])
        and not np.isnan(now[t])
    ]


def is_frozen(cells: RecallCells, gallery: Gallery) -> bool:
    """Check whether ranks cannot change: pinned queries in their own shard."""
    return cells.mode == "pinned" and gallery == "local"


def _measured_loss(cells: RecallCells, gallery: Gallery) -> library.MeasuredLoss | None:
    losses = domain_losses(cells, gallery)
    if not losses:
        return None
    queries = np.array([[loss.queries for loss in losses]] * 2)
    shares = np.array([[loss.learned for loss in losses], [loss.now for loss in losses]])
    learned, now = query_mean(shares, queries).tolist()
    candidates = [loss for loss in losses if loss.queries >= FEW_QUERIES] or losses
    worst = max(candidates, key=lambda loss: loss.loss)
    return library.MeasuredLoss(
        loss=learned - now,
        domains=len(losses),
        queries=int(queries[0].sum()),
        learned=learned,
        now=now,
        worst=worst if worst.loss > 0 else None,
    )


def _changed_domains(cells: RecallCells, gallery: Gallery) -> set[int]:
    """Find the domains, by learned order, whose queries differ between the two releases."""
    newest = cells.releases[-1].order
    query_sets = defaultdict[int, set[str | None]](set)
    with session_scope() as session:
        rows = session.execute(
            select(Recall.task_order, Recall.query_set).where(
                Recall.gallery == gallery,
                Recall.query_set.is_not(None),
                Recall.task_order < newest,
                or_(Recall.release_order == newest, Recall.release_order == Recall.task_order),
            )
        )
        for task, query_set in rows:
            query_sets[task].add(query_set)
    return {task for task, sets in query_sets.items() if len(sets) > 1}


def wilson_interval(share: float, queries: int) -> tuple[float, float]:
    """Compute the 95 % interval of a share, 0..1: Wilson, "Probable inference" (J. Am. Stat. Assoc. 1927)."""
    spread = _Z * _Z / queries
    center = (share + spread / 2) / (1 + spread)
    margin = sqrt(max(0.0, share * (1 - share) / queries + spread / (4 * queries))) * _Z / (1 + spread)
    return max(0.0, center - margin), min(1.0, center + margin)


def difference_interval(before: float, after: float, queries: int) -> tuple[float, float]:
    """Compute the 95 % interval of ``before - after``: Newcombe, method 10 (Statistics in Medicine 1998).

    Treats the shares, 0..1, as independent samples of equally many queries. For shares of the same queries, the
    interval is too wide rather than too narrow.
    """
    (low, high), (later_low, later_high) = wilson_interval(before, queries), wilson_interval(after, queries)
    difference = before - after
    return (
        difference - hypot(before - low, later_high - after),
        difference + hypot(high - before, after - later_low),
    )
