"""The measured recall of a single domain, with the release that is served."""

from __future__ import annotations

from sqlalchemy import func, select

from cinestrata_schemas.library import RecallFigures
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Task
from service.library.recall.proportion_intervals import wilson_interval
from service.library.served_order import last_served_order
from service.storage.index_manifest import published_manifest

__all__ = ["newest_recall", "recall_figures"]


def newest_recall(task_id: str) -> dict[str, RecallFigures]:
    """Return the recall of a domain's held-out captions by gallery: of the newest measured release
    up to the served one.

    Args:
        task_id: Identifier of the domain's task.
    """
    manifest, _ = published_manifest()
    with session_scope() as session:
        last = last_served_order(session, manifest)
        order = select(Task.learned_order).where(Task.id == task_id).scalar_subquery()
        measured = (Recall.task_order == order) & (Recall.release_order > 0)
        if last is not None:
            measured &= Recall.release_order <= last
        newest = select(func.max(Recall.release_order)).where(measured).scalar_subquery()
        rows = session.scalars(select(Recall).where(measured, Recall.release_order == newest))
        return {row.gallery: recall_figures(row) for row in rows}


def recall_figures(cell: Recall) -> RecallFigures:
    """The figures of a cell of the recall matrix, with the confidence interval of its Recall@1."""
    low, high = wilson_interval(cell.r1, max(1, cell.queries))
    return RecallFigures(queries=cell.queries, r1=cell.r1, r5=cell.r5, r10=cell.r10, r1_low=low, r1_high=high)
