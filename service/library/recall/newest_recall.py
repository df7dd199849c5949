"""The last measured recall of a single domain."""

from __future__ import annotations

from sqlalchemy import func, select

from service.catalog.database import session_scope
from service.catalog.tables import Recall, Task
from service.core.schemas import RecallFigures
from service.library.recall.proportion_intervals import wilson_interval

__all__ = ["newest_recall", "recall_figures"]


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
        return {row.gallery: recall_figures(row) for row in rows}


def recall_figures(cell: Recall) -> RecallFigures:
    """The figures of a cell of the recall matrix, with the confidence interval of its Recall@1."""
    low, high = wilson_interval(cell.r1, max(1, cell.queries))
    return RecallFigures(queries=cell.queries, r1=cell.r1, r5=cell.r5, r10=cell.r10, r1_low=low, r1_high=high)
