"""Thresholds and alerts in the catalog: reading, changing and dismissing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from cinestrata_schemas.alerts import AlertDetails, AlertPage, AlertThresholds, ThresholdPatch
from service.audit.audit_log import record_change
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert, AlertThreshold
from service.catalog.tables import Task
from service.core.errors import NotFound

__all__ = [
    "DEFAULT_THRESHOLDS",
    "alert_details",
    "change_thresholds",
    "count_open_alerts",
    "dismiss_alert",
    "list_alerts",
    "open_alerts",
    "read_thresholds",
]

# The local loss of pinned queries is 0 by construction, so a small one is a fault. The global loss grows with the
# library.
DEFAULT_THRESHOLDS: Mapping[str, float] = {
    "forgetting_local": 0.02,
    "forgetting_global": 0.15,
    "recall_when_learned": 0.05,
    "failed_tasks": 1,
}
_LISTED = 100
_EARLIER = 20
_IS_OPEN = Alert.cleared_at.is_(None) & Alert.dismissed_at.is_(None)


def list_alerts() -> AlertPage:
    """Return the open alerts, the last earlier ones, and the thresholds."""
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
            thresholds=AlertThresholds.model_validate(read_thresholds(session)),
        )


def open_alerts(session: Session, limit: int) -> list[AlertDetails]:
    """Return the newest alerts that last and are not dismissed."""
    rows = session.scalars(select(Alert).where(_IS_OPEN).order_by(Alert.id.desc()).limit(limit)).all()
    return alert_details(session, rows)


def count_open_alerts(session: Session) -> int:
    """Return the number of alerts that last and are not dismissed."""
    return session.scalar(select(func.count()).select_from(Alert).where(_IS_OPEN)) or 0


def read_thresholds(session: Session) -> dict[str, float | None]:
    """Return the threshold of each kind; None turns its alerts off."""
    changed = {row.kind: row.value for row in session.scalars(select(AlertThreshold))}
    return {kind: changed.get(kind, default) for kind, default in DEFAULT_THRESHOLDS.items()}


def change_thresholds(patch: ThresholdPatch) -> AlertThresholds:
    """Change the thresholds that a patch sets, and return all of them."""
    changes: dict[str, Any] = {kind: getattr(patch, kind) for kind in patch.model_fields_set}
    with session_scope(write=True) as session:
        for kind, value in changes.items():
            session.merge(AlertThreshold(kind=kind, value=value))
        if changes:
            record_change(session, "alert.thresholds", "", changes)
        session.flush()
        return AlertThresholds.model_validate(read_thresholds(session))


def dismiss_alert(alert_id: int) -> AlertDetails:
    """Hide an alert. It is raised again only after its measure has recovered. Idempotent.

    Raises:
        NotFound: the alert does not exist.
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
    """Return the details of alerts, in their order."""
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
