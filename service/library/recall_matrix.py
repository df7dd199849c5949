"""The recall matrix A[i, t] of the catalog and the measures derived from it.

:mod:`models.forgetting_measures` defines the measures.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from models.forgetting_measures import backward_forgetting, forgetting_rate, harmonic_mean
from service.catalog.database import session_scope
from service.catalog.tables import Recall, Release, Task
from service.core.schemas import Matrix, RecallFigures, RecallMatrix
from service.core.settings import QueryMode, settings

__all__ = ["read_recall_matrix"]

_Cells = dict[tuple[int, int], Recall]  # (i, t) → figures


def read_recall_matrix(mode: QueryMode | None = None) -> RecallMatrix:
    """Read the recall matrix of one query mode.

    Args:
        mode: Query mode; None: the mode in which the service searches, or the one with results.
    """
    with session_scope() as session:
        tasks = {
            t.learned_order: t for t in session.scalars(select(Task).where(Task.learned_order.is_not(None)))
        }
        rows = session.scalars(select(Recall)).all()
        releases = {r.learned_order: r.id for r in session.scalars(select(Release))}
    modes = sorted({row.mode for row in rows})
    selected_mode = mode or (settings().served_mode(modes) if modes else settings().query_mode)
    cells: dict[str, _Cells] = {gallery: {} for gallery in ("local", "global", "local_all", "global_all")}
    for row in rows:
        if row.mode == selected_mode:
            cells[row.gallery][row.release_order, row.task_order] = row
    measured = cells["local"]
    i_orders = sorted({i for i, _ in measured if i > 0})
    t_orders = sorted({t for i, t in measured if i > 0})
    local = _matrix(cells["local"], i_orders, t_orders)
    union = _matrix(cells["global"], i_orders, t_orders)
    # The measures require square matrices: a task without queries has an empty column.
    orders = sorted({*i_orders, *t_orders})
    square_local, square_union = (_matrix(cells[g], orders, orders) for g in ("local", "global"))
    return RecallMatrix(
        tasks=[tasks[t].name for t in t_orders],
        task_ids=[tasks[t].id for t in t_orders],
        releases=[releases.get(i) or tasks[i].release_id or "" for i in i_orders],
        mode=selected_mode,
        modes=modes,
        matrix_local=local,
        matrix_global=union,
        matrix_local_all=_matrix(cells["local_all"], i_orders, t_orders),
        matrix_global_all=_matrix(cells["global_all"], i_orders, t_orders),
        bwf_local=backward_forgetting(square_local),
        bwf_global=backward_forgetting(square_union),
        fr=forgetting_rate(square_local),
        hm=harmonic_mean(square_local),
        zero_shot=[measured[0, t].r1 if (0, t) in measured else None for t in t_orders],
        recall_over_time_local=[_mean(row) for row in local],
        recall_over_time_global=[_mean(row) for row in union],
        router_accuracy=[_router_accuracy(cells["global"], i) for i in i_orders],
        held_out=[tasks[t].held_out for t in t_orders],  # type: ignore[misc]
        after=[tasks[i].name for i in i_orders],
        newest={gallery: _last_row(cells[gallery], i_orders, t_orders) for gallery in cells},
    )


def _matrix(cells: _Cells, i_orders: list[int], t_orders: list[int]) -> Matrix:
    return [[cells[i, t].r1 if t <= i and (i, t) in cells else None for t in t_orders] for i in i_orders]


def _last_row(cells: _Cells, i_orders: list[int], t_orders: list[int]) -> list[RecallFigures | None]:
    found = [cells.get((i_orders[-1], t)) for t in t_orders] if i_orders else []
    return [
        RecallFigures(queries=cell.queries, r1=cell.r1, r5=cell.r5, r10=cell.r10) if cell else None
        for cell in found
    ]


def _mean(row: Sequence[float | None]) -> float | None:
    known = [value for value in row if value is not None]
    return sum(known) / len(known) if known else None


def _router_accuracy(cells: _Cells, i: int) -> float | None:
    """Return the share of queries of all tasks up to i whose own task was the first candidate."""
    rows = [row for (release, _), row in cells.items() if release == i and row.routing1 is not None]
    queries = sum(row.queries for row in rows)
    return sum((row.routing1 or 0) * row.queries for row in rows) / queries if queries else None
