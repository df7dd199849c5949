"""The last measured recall of a single domain."""

from __future__ import annotations

from sqlalchemy import func, select

from service.catalog.database import session_scope
from service.catalog.tables import Recall, Task
from service.core.schemas import RecallFigures

__all__ = ["newest_recall"]


def newest_recall(task_id: str, mode: str) -> dict[str, RecallFigures]:
    """Return the recall of a domain's held-out captions under the newest release that was measured, by gallery.

    Args:
        task_id: Identifier of the domain's task.
        mode: Query mode.
    """
    with session_scope() as session:
        order = select(Task.learned_order).where(Task.id == task_id).scalar_subquery()
        measured = (Recall.task_order == order) & (Recall.mode == mode) & (Recall.release_order > 0)
        newest = select(func.max(Recall.release_order)).where(measured).scalar_subquery()
        rows = session.scalars(select(Recall).where(measured, Recall.release_order == newest))
        return {
            row.gallery: RecallFigures(queries=row.queries, r1=row.r1, r5=row.r5, r10=row.r10) for row in rows
        }
