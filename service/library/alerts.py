"""Alerts: raise, list, dismiss and clear them as measures cross thresholds.

An alert is raised once, when a threshold is crossed; while it lasts, its value and threshold are kept up to date. A
loss must fall below four fifths of its threshold to clear the alert, so a value that hovers around the threshold raises
only one. Measures from fewer than 20 queries raise none, and neither does a loss whose 95 % interval contains 0.

A forgetting alert reports the larger of two losses: that over all earlier domains, weighted by queries, and that of the
domain that lost most. A new domain without a loss lowers the first but not the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cinestrata_schemas.alerts import AlertDetails, AlertKind, AlertPage
from cinestrata_schemas.library import DomainLoss, MeasuredLoss
from service.access.audit_log import record_change
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert
from service.catalog.tables import Task
from service.core.errors import NotFound
from service.library.recall.proportion_intervals import difference_interval
from service.library.recall.recall_cells import RecallCells, read_recall_cells
from service.library.recall.recall_losses import FEW_QUERIES, GALLERIES
from service.library.recall.recall_matrix import read_served_recall, until_served
from service.webhooks.events import emit

# The local loss of pinned queries is 0 by construction, so even a small one is a fault. The global loss grows with the
# library.
THRESHOLDS: Mapping[AlertKind, float] = {
    "forgetting_local": 0.02,
    "forgetting_global": 0.15,
    "recall_when_learned": 0.05,
    "failed_tasks": 1,
}
_CLEARED_SHARE = 0.8  # of a loss's threshold
_RETENTION = timedelta(days=90)  # for cleared alerts
_LISTED = 100
_EARLIER = 20
_IS_OPEN = Alert.cleared_at.is_(None) & Alert.dismissed_at.is_(None)


class _Crossing(NamedTuple):
    kind: AlertKind
    task_id: str | None
    value: float
    threshold: float
    is_new: bool  # far enough to raise an alert; otherwise only enough to keep one

    @property
    def key(self) -> str:
        """Identity of the crossing. The domain with the largest loss may change while an alert lasts."""
        return f"{self.kind}:{self.task_id if self.kind == 'recall_when_learned' else ''}"


def evaluate_alerts() -> None:
    """Raise alerts for crossed thresholds, and clear recovered ones. Concurrent calls are safe.

    Raises:
        Unavailable: The catalog cannot be reached.
    """
    cells = read_recall_cells(GALLERIES)
    with session_scope() as session:
        failed = session.scalar(select(func.count()).where(Task.state == "failed")) or 0
        keys = session.scalars(select(Alert.open_key).where(Alert.open_key.is_not(None)))
        known = {key for key in keys if key is not None}
    crossings = {crossing.key: crossing for crossing in _crossings(cells, failed)}
    raised = [crossing for key, crossing in crossings.items() if crossing.is_new and key not in known]
    for crossing in raised:
        _raise(crossing)
    _update({key: crossing for key, crossing in crossings.items() if key in known})
    if ended := known - crossings.keys():
        _clear(ended)


def sweep_alerts() -> None:
    """Delete alerts 90 days after they were cleared.

    Raises:
        Unavailable: The catalog cannot be reached.
    """
    with session_scope(write=True) as session:
        session.execute(delete(Alert).where(Alert.cleared_at < now(session) - _RETENTION))


def _crossings(cells: RecallCells, failed: int) -> Iterator[_Crossing]:
    limit = THRESHOLDS["failed_tasks"]
    if failed >= limit:
        yield _Crossing("failed_tasks", None, failed, limit, is_new=True)
    losses = read_served_recall(until_served(cells)).loss
    kinds: tuple[tuple[AlertKind, str], ...] = (
        ("forgetting_local", "local"),
        ("forgetting_global", "global"),
    )
    for kind, gallery in kinds:
        loss = losses[gallery]  # type: ignore[index]
        if loss is not None:
            yield from _large_loss(kind, loss, THRESHOLDS[kind])
    yield from _low_recalls(cells, THRESHOLDS["recall_when_learned"])


def _large_loss(kind: AlertKind, measured: MeasuredLoss, limit: float) -> Iterator[_Crossing]:
    losses = [loss for loss in (measured.worst, measured) if loss is not None and loss.queries >= FEW_QUERIES]
    significant = [loss for loss in losses if _is_significant(loss)]
    for candidates, least, is_new in ((significant, limit, True), (losses, _CLEARED_SHARE * limit, False)):
        largest = max(candidates, key=lambda loss: loss.loss, default=None)
        if largest is not None and largest.loss >= least:
            task_id = largest.task_id if isinstance(largest, DomainLoss) else None
            yield _Crossing(kind, task_id, largest.loss, limit, is_new)
            return


def _is_significant(loss: MeasuredLoss | DomainLoss) -> bool:
    """Check whether the 95 % interval is above 0. Without a paired one, use the wider one of independent shares."""
    low = difference_interval(loss.learned, loss.now, loss.queries)[0] if loss.low is None else loss.low
    return low > 0


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


def _update(crossings: dict[str, _Crossing]) -> None:
    """Update open alerts to the current values and thresholds."""
    with session_scope() as session:
        rows = session.scalars(select(Alert).where(Alert.open_key.in_(sorted(crossings)))).all()
        changed = [
            row.open_key for row in rows if row.open_key and _facts(row) != _facts(crossings[row.open_key])
        ]
    if not changed:
        return
    with session_scope(write=True) as session:
        for row in session.scalars(select(Alert).where(Alert.open_key.in_(changed)).with_for_update()):
            row.task_id, row.value, row.threshold = _facts(crossings[row.open_key or ""])


def _facts(alert: Alert | _Crossing) -> tuple[str | None, float, float]:
    return alert.task_id, alert.value, alert.threshold


def _clear(keys: set[str]) -> None:
    with session_scope(write=True) as session:
        for row in session.scalars(select(Alert).where(Alert.open_key.in_(sorted(keys))).with_for_update()):
            row.open_key, row.cleared_at = None, now(session)
            if row.dismissed_at is None:
                details = alert_details(session, [row])[0]
                emit(session, "alert.cleared", details.model_dump(mode="json", exclude={"dismissed_at"}))


def list_alerts() -> AlertPage:
    """List the open alerts and the last earlier ones."""
    with session_scope() as session:
        earlier = session.scalars(
            select(Alert)
            .where(or_(Alert.cleared_at.is_not(None), Alert.dismissed_at.is_not(None)))
            .order_by(Alert.id.desc())
            .limit(_EARLIER)
        ).all()
        return AlertPage(
            open=open_alerts(session, _LISTED),
            open_count=count_open_alerts(session),
            earlier=alert_details(session, earlier),
        )


def open_alerts(session: Session, limit: int) -> list[AlertDetails]:
    """List the newest alerts that are neither cleared nor dismissed."""
    rows = session.scalars(select(Alert).where(_IS_OPEN).order_by(Alert.id.desc()).limit(limit)).all()
    return alert_details(session, rows)


def count_open_alerts(session: Session) -> int:
    """Count the alerts that are neither cleared nor dismissed."""
    return session.scalar(select(func.count()).select_from(Alert).where(_IS_OPEN)) or 0


def dismiss_alert(alert_id: int) -> AlertDetails:
    """Dismiss an alert. It can be raised again only after its measure has recovered. Idempotent.

    Raises:
        NotFound: The alert does not exist.
    """
    with session_scope(write=True) as session:
        row = session.get(Alert, alert_id)
        if row is None:
            raise NotFound(f"There is no alert {alert_id}.")
        if row.dismissed_at is None:
            row.dismissed_at = now(session)
            record_change(session, "alert.dismiss", str(row.id), {"kind": row.kind, "task_id": row.task_id})
        return alert_details(session, [row])[0]


def alert_details(session: Session, rows: Sequence[Alert]) -> list[AlertDetails]:
    """Describe alerts, in order."""
    ids = {row.task_id for row in rows if row.task_id}
    names = dict(session.execute(select(Task.id, Task.name).where(Task.id.in_(ids))).all()) if ids else {}
    return [
        AlertDetails(
            id=row.id,
            kind=row.kind,  # type: ignore[arg-type]
            task_id=row.task_id,
            task=names.get(row.task_id or ""),
            value=row.value,
            threshold=row.threshold,
            message=_message(row, names.get(row.task_id or "", row.task_id)),
            raised_at=row.raised_at,
            cleared_at=row.cleared_at,
            dismissed_at=row.dismissed_at,
        )
        for row in rows
    ]


def _message(row: Alert, name: str | None) -> str:
    if row.kind == "failed_tasks":
        tasks = "1 task has failed" if row.value == 1 else f"{row.value:.0f} tasks have failed"
        return f"{tasks}; the threshold is {row.threshold:.0f}."
    if row.kind == "recall_when_learned":
        return (
            f"Domain “{name}” was learned with recall@1 of {100 * row.value:.1f} % in its own shard; the threshold is "
            f"{100 * row.threshold:.1f} %."
        )
    is_local, owner = row.kind == "forgetting_local", "its own shard" if row.task_id else "their own shards"
    losers = f"Domain “{name}” has" if row.task_id else "Earlier domains have"
    return (
        f"{losers} lost {100 * row.value:.1f} points of recall@1 {f'in {owner}' if is_local else 'among all shards'}; "
        f"the threshold is {100 * row.threshold:.1f} points."
    )
