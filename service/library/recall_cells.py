"""The recall matrix as arrays, kept in memory until the library changes."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import Gallery, QueryMode
from index.files.store_folder import StoreFolder
from models.errors import ModelError
from models.releases.release_files import read_parent
from service.catalog.database import session_scope
from service.catalog.domain_videos import read_counts
from service.catalog.tables import Recall, Release, Task
from service.core.settings import settings

GALLERIES: tuple[Gallery, ...] = ("local", "global", "local_all", "global_all")
_FETCHED_ROWS = 20_000


class LearnedTask(NamedTuple):
    """What the recall matrix needs to know about a learned task, or about an upgrade, which is a row only."""

    order: int
    id: str
    name: str
    release: str
    held_out: str | None
    finished_at: datetime | None
    has_videos: bool
    trained: bool


@dataclass(frozen=True)
class GalleryCells:
    """One gallery's cells, indexed by learned orders ``[i, t]``; row 0 is the untrained backbone."""

    r1: npt.NDArray[np.float64]  # Recall@1, 0..1; NaN where it was not measured
    queries: npt.NDArray[np.int64]
    # per release, the number of queries whose own task was the first candidate [i]
    routed: npt.NDArray[np.float64]
    routable: npt.NDArray[np.int64]  # per release, the number of queries that were routed [i]

    def router_accuracy(self, order: int) -> float | None:
        """Compute, over all tasks up to a release, the share of queries whose own task was the first candidate."""
        queries = int(self.routable[order])
        return float(self.routed[order]) / queries if queries else None


@dataclass(frozen=True)
class RecallCells:
    """The cells of the recall matrix."""

    version: str  # ID of this state; changes whenever a cell does
    mode: QueryMode  # query mode in which the newest release is served and was measured
    releases: tuple[LearnedTask, ...]  # the rows: tasks whose releases were measured, in learned order
    tasks: tuple[LearnedTask, ...]  # the columns: tasks with queries, in learned order
    galleries: dict[Gallery, GalleryCells]

    def matrix(self, gallery: Gallery) -> npt.NDArray[np.float64]:
        """Select Recall@1 of the measured releases on the tasks ``[R, T]``; NaN where undefined."""
        return self._select(self.galleries[gallery].r1)

    def queries(self, gallery: Gallery) -> npt.NDArray[np.int64]:
        """Select the number of queries behind each cell of :meth:`matrix`."""
        return self._select(self.galleries[gallery].queries)

    def when_learned(self, gallery: Gallery) -> npt.NDArray[np.float64]:
        """Select each task's Recall@1 with the release that learned it ``[T]``; NaN where it was not measured."""
        orders = [task.order for task in self.tasks]
        return np.asarray(self.galleries[gallery].r1[orders, orders])

    def square(self, gallery: Gallery) -> npt.NDArray[np.float64]:
        """Select Recall@1 of all measured orders on themselves; a task without queries has an empty column."""
        orders = sorted({task.order for task in (*self.releases, *self.tasks)})
        return np.asarray(_lower(self.galleries[gallery].r1)[np.ix_(orders, orders)])

    def until(self, order: int) -> RecallCells:
        """Restrict the cells to releases and tasks up to a learned order."""
        return replace(
            self,
            version=f"{self.version}-{order}",
            releases=tuple(release for release in self.releases if release.order <= order),
            tasks=tuple(task for task in self.tasks if task.order <= order),
        )

    def _select(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        rows, columns = ([task.order for task in axis] for axis in (self.releases, self.tasks))
        return np.asarray(_lower(values)[np.ix_(rows, columns)])


def _lower(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Mask the cells of tasks that a release had not learned."""
    above = np.triu(np.ones(values.shape, bool), 1)
    return np.where(above, np.nan if values.dtype.kind == "f" else 0, values)


def read_learned_tasks(session: Session) -> tuple[tuple[LearnedTask, ...], str]:
    """Read the learned tasks and upgrades in learned order, and the recall matrix's version."""
    order_of_task = func.coalesce(Task.learned_order, Task.upgrade_order)
    rows = session.execute(
        select(
            order_of_task,
            Task.id,
            Task.name,
            Task.release_id,
            Task.held_out,
            Task.finished_at,
            Task.counts,
            Task.trained,
        )
        .where(order_of_task.is_not(None))
        .order_by(order_of_task)
    )
    tasks = tuple(
        LearnedTask(
            order,
            id_,
            name,
            release or "",
            held_out,
            finished_at,
            bool(read_counts(session, id_, counts).get("accepted")),
            trained,
        )
        for order, id_, name, release, held_out, finished_at, counts, trained in rows
    )
    last_cell = session.scalar(select(func.max(Recall.id))) or 0
    return tasks, hashlib.blake2b(repr((tasks, last_cell)).encode(), digest_size=12).hexdigest()


def read_measures_version() -> str:
    """Read the version of the recall matrix: its cells, and the domains' names and splits."""
    with session_scope() as session:
        return read_learned_tasks(session)[1]


def read_recall_cells() -> RecallCells:
    """Read the cells of all galleries; unchanged ones come from memory. The local one defines rows and columns."""
    with session_scope() as session:
        tasks, version = read_learned_tasks(session)
        orders = tasks[-1].order if tasks else 0
        read = {gallery: _read_gallery(session, gallery, version, orders) for gallery in GALLERIES}
        mode = session.scalar(select(Recall.mode).order_by(Recall.release_order.desc()).limit(1))
    measured = ~np.isnan(_lower(read["local"].r1)[1:])
    by_order = {task.order: task for task in tasks}
    return RecallCells(
        version=version,
        mode=mode or "pinned",  # type: ignore[arg-type]
        releases=tuple(by_order[int(i) + 1] for i in np.flatnonzero(measured.any(axis=1))),
        tasks=tuple(by_order[int(t)] for t in np.flatnonzero(measured.any(axis=0))),
        galleries=read,
    )


def nullable(values: npt.NDArray[np.float64]) -> Any:
    """Convert an array to lists for JSON, with None instead of NaN."""
    nulls: Any = None
    return np.where(np.isnan(values), nulls, values.astype(object)).tolist()


def query_mean(values: npt.NDArray[np.float64], queries: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Compute each row's mean over the measured cells ``[R, T]``, weighted by queries ``[R, T]``; NaN without any."""
    used = np.where(np.isnan(values), 0, queries)
    count = used.sum(axis=1)
    total = (np.nan_to_num(values) * used).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@cached(
    LRUCache(len(GALLERIES)),
    key=lambda session, gallery, version, orders: (settings().database_url, gallery, version),
    lock=threading.Lock(),
)
def _read_gallery(session: Session, gallery: Gallery, version: str, orders: int) -> GalleryCells:
    size = orders + 1
    cells = GalleryCells(
        np.full((size, size), np.nan),
        np.zeros((size, size), np.int64),
        np.zeros(size),
        np.zeros(size, np.int64),
    )
    columns = Recall.release_order, Recall.task_order, Recall.r1, Recall.queries, Recall.routing1
    rows = session.execute(
        select(*columns).where(Recall.gallery == gallery).execution_options(yield_per=_FETCHED_ROWS)
    )
    for part in rows.partitions():
        i, t, r1, queries, routing = (np.array(column) for column in zip(*part, strict=True))
        is_learned = (i < size) & (t < size)
        i, t, queries = i[is_learned], t[is_learned], queries[is_learned]
        cells.r1[i, t], cells.queries[i, t] = r1[is_learned], queries
        share = np.array(routing, float)[is_learned]  # None becomes NaN
        is_routed = ~np.isnan(share)
        np.add.at(cells.routable, i[is_routed], queries[is_routed])
        np.add.at(cells.routed, i[is_routed], (share * queries)[is_routed])
    _carry_over(session, cells)
    return cells


def _carry_over(session: Session, cells: GalleryCells) -> None:
    """Fill in the cells of domains of another lineage than a release, which it does not change, from the last one."""
    is_missing = np.tril(np.isnan(cells.r1), -1)
    if not is_missing[:, 1:].any():
        return
    folder, first = StoreFolder(settings().index_dir), dict[str, str]()  # first release of each one's lineage
    lineages: dict[int, str] = {}  # by the order of the release
    releases = select(Release.learned_order, Release.id).order_by(Release.learned_order)
    for order, release in session.execute(releases):
        parent: str | None = None
        with suppress(ModelError, OSError):
            parent = _read_parent(folder.release_folder(release))
        lineages[order] = first[release] = first.get(parent, parent) if parent else release
    upgrades = select(Task.upgrade_order, Task.release_id).where(Task.upgrade_order.is_not(None))
    lineages |= {order or 0: first.get(release or "", "") for order, release in session.execute(upgrades)}
    if len(set(lineages.values())) < 2:
        return
    orders = np.arange(len(cells.r1))
    domains = select(Task.learned_order, Task.release_id).where(Task.learned_order < len(orders))
    for t, made_by in session.execute(domains):
        column, lineage = cells.r1[:, t], first.get(made_by or "")
        last = np.maximum.accumulate(np.where(np.isnan(column), 0, orders))  # row 0 is the untrained backbone
        is_other = [lineages.get(order, lineage) != lineage for order in orders.tolist()]
        (carried,) = np.nonzero(is_other & is_missing[:, t] & (last > 0))
        column[carried] = column[last[carried]]
        cells.queries[carried, t] = cells.queries[last[carried], t]


_read_parent = cache(read_parent)  # releases never change
