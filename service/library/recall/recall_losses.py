"""How much earlier domains have lost: recall right after they were learned, minus the newest release's.

With pinned queries, a domain whose queries differ after a deletion or a caption edit is left out of the loss in its own
shard: only the queries changed, not their results.
"""

from __future__ import annotations

from collections import defaultdict
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached
from sqlalchemy import or_, select

from cinestrata_schemas.choice_types import Gallery
from cinestrata_schemas.library import DomainLoss, MeasuredLoss
from service.catalog.database import session_scope
from service.catalog.tables import Recall
from service.library.recall.recall_cells import RecallCells, query_mean

GALLERIES: tuple[Gallery, ...] = ("local", "global", "local_all", "global_all")
FEW_QUERIES = 20  # with fewer, the interval of a share of one half is wider than 40 points


@cached(LRUCache(16), key=lambda cells: cells.version, lock=Lock())
def measured_losses(cells: RecallCells) -> dict[Gallery, MeasuredLoss | None]:
    """Compute the loss in each gallery; None before the second domain, or if nothing was measured.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    return {gallery: _measured_loss(cells, gallery) for gallery in GALLERIES}


@cached(LRUCache(32), key=lambda cells, gallery: (cells.version, gallery), lock=Lock())
def domain_losses(cells: RecallCells, gallery: Gallery) -> list[DomainLoss]:
    """Compute the loss of each measured domain that was learned before the newest release.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    if not cells.releases:
        return []
    learned, now = cells.when_learned(gallery), cells.matrix(gallery)[-1]
    queries = cells.queries(gallery)[-1]
    omitted = _changed_domains(cells, gallery) if is_frozen(cells, gallery) else set[int]()
    return [
        DomainLoss(
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


def is_frozen(cells: RecallCells, gallery: str) -> bool:
    """Check whether ranks cannot change: pinned queries in their own shard."""
    return cells.mode == "pinned" and gallery == "local"


def _measured_loss(cells: RecallCells, gallery: Gallery) -> MeasuredLoss | None:
    losses = domain_losses(cells, gallery)
    if not losses:
        return None
    queries = np.array([[loss.queries for loss in losses]] * 2)
    shares = np.array([[loss.learned for loss in losses], [loss.now for loss in losses]])
    learned, now = query_mean(shares, queries).tolist()
    candidates = [loss for loss in losses if loss.queries >= FEW_QUERIES] or losses
    worst = max(candidates, key=lambda loss: loss.loss)
    return MeasuredLoss(
        loss=learned - now,
        domains=len(losses),
        queries=int(queries[0].sum()),
        learned=learned,
        now=now,
        worst=worst if worst.loss > 0 else None,
    )


def _changed_domains(cells: RecallCells, gallery: str) -> set[int]:
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
