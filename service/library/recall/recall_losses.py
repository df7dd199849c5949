"""How much earlier domains have lost: recall right after they were learned, minus the newest release's.

Both releases answer the same queries, so a loss is compared query by query. If the queries differ after a deletion or a
caption edit, the interval is omitted. With pinned queries, a domain whose queries differ is left out of the loss in its
own shard: only the queries changed, not their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached
from sqlalchemy import or_, select

from cinestrata_schemas.choice_types import Gallery
from cinestrata_schemas.library import DomainLoss, MeasuredLoss
from service.catalog.database import session_scope
from service.catalog.tables import Recall
from service.library.recall.proportion_intervals import paired_interval
from service.library.recall.recall_cells import LearnedTask, RecallCells, query_mean

GALLERIES: tuple[Gallery, ...] = ("local", "global", "local_all", "global_all")
FEW_QUERIES = 20  # with fewer, the interval of a share of one half is wider than 40 points


class _Changes(NamedTuple):
    """How many of a domain's queries one of two releases ranks first and the other does not."""

    lost: int
    gained: int


class _Column(NamedTuple):
    """An earlier domain that both releases were measured on."""

    task: LearnedTask
    queries: int
    learned: float
    now: float
    changes: _Changes | None


@cached(LRUCache(16), key=lambda cells: cells.version, lock=Lock())
def measured_losses(cells: RecallCells) -> dict[Gallery, MeasuredLoss | None]:
    """Compute the loss in each gallery; None before the second domain, or if nothing was measured.

    Raises:
        Unavailable: The catalog is unreachable.
    """
    return {gallery: _measured_loss(cells, gallery) for gallery in GALLERIES}


def _measured_loss(cells: RecallCells, gallery: str) -> MeasuredLoss | None:
    columns = _earlier_columns(cells, gallery)
    if not columns:
        return None
    queries = np.array([[column.queries for column in columns]] * 2)
    shares = np.array([[column.learned for column in columns], [column.now for column in columns]])
    learned, now = query_mean(shares, queries).tolist()
    changes = [column.changes for column in columns]
    total = int(queries[0].sum())
    is_frozen = _is_frozen(cells, gallery)
    low, high = _interval(changes, total, is_frozen=is_frozen)
    return MeasuredLoss(
        loss=learned - now,
        domains=len(columns),
        queries=total,
        low=low,
        high=high,
        learned=learned,
        now=now,
        worst=_worst(columns, is_frozen=is_frozen),
    )


def _is_frozen(cells: RecallCells, gallery: str) -> bool:
    """Check whether ranks cannot change: pinned queries in their own shard.

    A loss of 0 is then exact, not only measured.
    """
    return cells.mode == "pinned" and gallery == "local"


def _worst(columns: list[_Column], *, is_frozen: bool) -> DomainLoss | None:
    """Find the domain with the largest loss, among those with enough queries if there are any; None without a loss.

    Since it is chosen among several, its interval is widened (Bonferroni).
    """
    candidates = [column for column in columns if column.queries >= FEW_QUERIES] or columns
    worst = max(candidates, key=lambda column: column.learned - column.now)
    if worst.learned <= worst.now:
        return None
    low, high = _interval([worst.changes], worst.queries, is_frozen=is_frozen, comparisons=len(candidates))
    return DomainLoss(
        task_id=worst.task.id,
        task=worst.task.name,
        loss=worst.learned - worst.now,
        queries=worst.queries,
        low=low,
        high=high,
        learned=worst.learned,
        now=worst.now,
    )


def _interval(
    changes: list[_Changes | None], queries: int, *, is_frozen: bool, comparisons: int = 1
) -> tuple[float | None, float | None]:
    known = [change for change in changes if change is not None]
    if len(known) < len(changes):
        return None, None
    lost, gained = (sum(numbers) for numbers in zip(*known, strict=True))
    if is_frozen and not lost and not gained:
        return 0.0, 0.0
    return paired_interval(lost, gained, queries, comparisons)


def _earlier_columns(cells: RecallCells, gallery: str) -> list[_Column]:
    """Collect the measured domains that were learned before the newest release."""
    if not cells.releases:
        return []
    learned, now = cells.when_learned(gallery), cells.matrix(gallery)[-1]
    queries = cells.queries(gallery)[-1]
    changes = _read_changes(cells, gallery)
    incomparable = {task for task, change in changes.items() if change is None}
    omitted = incomparable if _is_frozen(cells, gallery) else frozenset[int]()
    return [
        _Column(task, int(queries[t]), float(learned[t]), float(now[t]), changes.get(task.order))
        for t, task in enumerate(cells.tasks)
        if task.order != cells.releases[-1].order
        and task.order not in omitted
        and queries[t]
        and not np.isnan(learned[t])
        and not np.isnan(now[t])
    ]


def _read_changes(cells: RecallCells, gallery: str) -> Mapping[int, _Changes | None]:
    """Compare both releases' outcomes for each domain, by learned order; None if their queries differ."""
    newest = cells.releases[-1].order
    with session_scope() as session:
        rows = session.execute(
            select(
                Recall.release_order, Recall.task_order, Recall.query_set, Recall.queries, Recall.first_hits
            ).where(
                Recall.gallery == gallery,
                Recall.first_hits.is_not(None),
                Recall.task_order < newest,
                or_(Recall.release_order == newest, Recall.release_order == Recall.task_order),
            )
        ).all()
    hits = {(i, t): (query_set, _unpack(packed, queries)) for i, t, query_set, queries, packed in rows}
    changes: dict[int, _Changes | None] = {}
    for (release, task), (query_set, now) in hits.items():
        if release != newest or (task, task) not in hits:
            continue
        known_set, learned = hits[task, task]
        if known_set == query_set:
            changes[task] = _Changes(int((learned & ~now).sum()), int((now & ~learned).sum()))
        else:
            changes[task] = None
    return changes


def _unpack(packed: bytes | None, queries: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(packed or b"", np.uint8), count=queries).astype(bool)
