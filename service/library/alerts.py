"""Alerts: earlier domains that have lost recall, computed from the recall matrix.

A domain has lost recall if its Recall@1 with the served release is lower by a threshold than when it was learned.
Domains with fewer than 20 queries raise no alert, and neither does a loss whose 95 % interval contains 0. The catalog
stores an alert while it lasts, so that webhooks receive one message when it is raised and one when it is cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from cinestrata_schemas.choice_types import Gallery
from cinestrata_schemas.library import AlertDetails, AlertKind, DomainLoss
from service.catalog.database import now, session_scope
from service.catalog.operation_tables import Alert
from service.catalog.tables import to_response
from service.catalog.task_names import read_task_names
from service.library import recall_matrix
from service.library.recall_cells import RecallCells, read_recall_cells
from service.webhooks.endpoints import emit

# The local loss of pinned queries is 0 by construction, so even a small one is a fault. The global loss grows with the
# library.
THRESHOLDS: Mapping[AlertKind, float] = {"forgetting_local": 0.02, "forgetting_global": 0.15}
_GALLERIES: Mapping[AlertKind, Gallery] = {"forgetting_local": "local", "forgetting_global": "global"}


def evaluate_alerts() -> None:
    """Raise alerts for domains that have lost recall, and clear those of the others. Concurrent calls are safe."""
    lost = dict(_lost_recall(recall_matrix.until_served(read_recall_cells())))
    with session_scope() as session:
        stored = dict(session.execute(select(Alert.open_key, Alert.value)).all())
    if stored == {key: loss.loss for key, (_, loss) in lost.items()}:
        return
    try:
        with session_scope(write=True) as session:
            _store(session, lost)
    except IntegrityError:
        pass  # another process has raised one of them; the next call compares again


def _lost_recall(cells: RecallCells) -> Iterator[tuple[str, tuple[AlertKind, DomainLoss]]]:
    for kind, gallery in _GALLERIES.items():
        for loss in recall_matrix.domain_losses(cells, gallery):
            if loss.queries < recall_matrix.FEW_QUERIES or loss.loss < THRESHOLDS[kind]:
                continue
            # Ranks in a frozen shard cannot change by chance. Elsewhere, the interval is that of independent shares,
            # which is wider than that of the same queries.
            if (
                recall_matrix.is_frozen(cells, gallery)
                or recall_matrix.difference_interval(loss.learned, loss.now, loss.queries)[0] > 0
            ):
                yield f"{kind}:{loss.task_id}", (kind, loss)


def _store(session: Session, lost: Mapping[str, tuple[AlertKind, DomainLoss]]) -> None:
    rows = {row.open_key: row for row in session.scalars(select(Alert).with_for_update())}
    for key, (kind, loss) in lost.items():
        if key in rows:
            rows[key].value = loss.loss
            continue
        row = Alert(
            kind=kind,
            task_id=loss.task_id,
            open_key=key,
            value=loss.loss,
            threshold=THRESHOLDS[kind],
            raised_at=now(session),
        )
        session.add(row)
        session.flush()
        (details,) = _details(session, [row])
        emit(session, "alert.raised", details.model_dump(mode="json", exclude={"cleared_at"}))
    for ended in [row for key, row in rows.items() if key not in lost]:
        (details,) = _details(session, [ended])
        cleared = details.model_copy(update={"cleared_at": now(session)})
        emit(session, "alert.cleared", cleared.model_dump(mode="json"))
        session.delete(ended)


def open_alerts(session: Session, limit: int) -> list[AlertDetails]:
    """List the newest alerts."""
    return _details(session, session.scalars(select(Alert).order_by(Alert.id.desc()).limit(limit)).all())


def count_open_alerts(session: Session) -> dict[str, int]:
    """Count the alerts by kind."""
    return dict(session.execute(select(Alert.kind, func.count()).group_by(Alert.kind)).all())


def _details(session: Session, rows: Sequence[Alert]) -> list[AlertDetails]:
    names = read_task_names(session, (row.task_id for row in rows if row.task_id))
    return [
        to_response(
            AlertDetails,
            row,
            task=names.get(row.task_id or ""),
            message=f"Domain “{names.get(row.task_id or '', row.task_id)}” has lost {100 * row.value:.1f} points of "
            f"recall@1 {'in its own shard' if row.kind == 'forgetting_local' else 'among all shards'}; the threshold "
            f"is {100 * row.threshold:.1f} points.",
        )
        for row in rows
    ]
