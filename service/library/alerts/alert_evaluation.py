"""Comparison of measures with the thresholds: alerts are raised and cleared.

An alert is raised once when its threshold is crossed, and not again while the crossing lasts. A loss must fall below
four fifths of its threshold to clear the alert, so a value that varies around the threshold raises one alert. Measures
of fewer than 20 queries raise none.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, select
from sqlalchemy.exc import IntegrityError

from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert
from service.catalog.tables import Task
from service.core.schemas import AlertKind
from service.library.alerts.alert_list import alert_details, read_thresholds
from service.library.recall.recall_cells import RecallCells, read_recall_cells
from service.library.recall.served_recall import FEW_QUERIES, GALLERIES, read_served_recall
from service.webhooks.events import emit

__all__ = ["evaluate_alerts", "sweep_alerts"]

_CLEARED_SHARE = 0.8  # of the threshold of a loss
_RETENTION = timedelta(days=90)  # of cleared alerts


class _Crossing(NamedTuple):
    kind: AlertKind
    task_id: str | None
    value: float
    threshold: float
    is_new: bool  # far enough to raise an alert; otherwise only to keep one

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.task_id or ''}"


def evaluate_alerts() -> None:
    """Raise alerts of crossed thresholds, and clear those of thresholds that are kept again. Concurrent calls are safe.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    cells = read_recall_cells(None, GALLERIES)
    with session_scope() as session:
        thresholds = read_thresholds(session)
        failed = session.scalar(select(func.count()).where(Task.state == "failed")) or 0
        keys = session.scalars(select(Alert.open_key).where(Alert.open_key.is_not(None)))
        known = {key for key in keys if key is not None}
    crossings = {crossing.key: crossing for crossing in _crossings(cells, thresholds, failed)}
    raised = [crossing for key, crossing in crossings.items() if crossing.is_new and key not in known]
    for crossing in raised:
        _raise(crossing)
    if ended := known - crossings.keys():
        _clear(ended)


def sweep_alerts() -> None:
    """Delete alerts that were cleared 90 days ago.

    Raises:
        Unavailable: the catalog cannot be reached.
    """
    with session_scope(write=True) as session:
        session.execute(delete(Alert).where(Alert.cleared_at < now(session) - _RETENTION))


def _crossings(cells: RecallCells, thresholds: dict[str, float | None], failed: int) -> Iterator[_Crossing]:
    limit = thresholds["failed_tasks"]
    if limit is not None and failed >= limit:
        yield _Crossing("failed_tasks", None, failed, limit, is_new=True)
    losses = read_served_recall(cells).loss
    kinds: tuple[tuple[AlertKind, str], ...] = (
        ("forgetting_local", "local"),
        ("forgetting_global", "global"),
    )
    for kind, gallery in kinds:
        limit, loss = thresholds[kind], losses[gallery]  # type: ignore[index]
        if limit is not None and loss is not None and loss.loss >= _CLEARED_SHARE * limit:
            is_new = loss.loss >= limit and loss.queries >= FEW_QUERIES
            yield _Crossing(kind, None, loss.loss, limit, is_new)
    limit = thresholds["recall_when_learned"]
    if limit is not None:
        yield from _low_recalls(cells, limit)


def _low_recalls(cells: RecallCells, limit: float) -> Iterator[_Crossing]:
    orders = [task.order for task in cells.tasks]
    queries = cells.galleries["local"].queries[orders, orders]
    for task, recall, count in zip(cells.tasks, cells.when_learned("local"), queries, strict=True):
        if task.has_videos and count >= FEW_QUERIES and recall < limit:
            yield _Crossing("recall_when_learned", task.id, float(recall), limit, is_new=True)


def _raise(crossing: _Crossing) -> None:
    try:
        with session_scope(write=True) as session:
            row = Alert(
                kind=crossing.kind,
                task_id=crossing.task_id,
                open_key=crossing.key,
                value=crossing.value,
                threshold=crossing.threshold,
                raised_at=now(session),
            )
            session.add(row)
            session.flush()
            details = alert_details(session, [row])[0]
            emit(
                session,
                "alert.raised",
                details.model_dump(mode="json", exclude={"dismissed_at", "cleared_at"}),
            )
    except IntegrityError:
        pass  # another process has raised it


def _clear(keys: set[str]) -> None:
    with session_scope(write=True) as session:
        for row in session.scalars(select(Alert).where(Alert.open_key.in_(sorted(keys))).with_for_update()):
            row.open_key, row.cleared_at = None, now(session)
            if row.dismissed_at is None:
                details = alert_details(session, [row])[0]
                emit(session, "alert.cleared", details.model_dump(mode="json", exclude={"dismissed_at"}))
