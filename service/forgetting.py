"""The recall matrix A[i, t] and the measures of forgetting that follow from it.

BWF after ``ctvr-ffa-tame``: the mean over t < T of A[t, t] − A[T, t]. FR and HM after ``bmu-moco``: FR is the sum of
the same differences, HM the harmonic mean of mean current (A[t, t]) and mean final (A[T, t]) Recall@1.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from service.catalog.database import session_scope
from service.catalog.models import Recall, Release, Task
from service.settings import QueryMode, settings
from service.views import ForgettingView, Matrix

__all__ = ["backward_forgetting", "forgetting", "forgetting_rate", "harmonic_mean"]

_Cells = dict[tuple[int, int], Recall]  # (i, t) → figures


def forgetting(mode: QueryMode | None = None) -> ForgettingView:
    """The figures of one query mode.

    Args:
        mode: default: the mode in which the service searches, or the one for which there are figures.
    """
    with session_scope() as session:
        rows = session.scalars(select(Recall)).all()
        tasks = {
            t.learned_order: t for t in session.scalars(select(Task).where(Task.learned_order.is_not(None)))
        }
        releases = {r.learned_order: r.id for r in session.scalars(select(Release))}
    modes = sorted({row.mode for row in rows})
    wanted: QueryMode = mode or settings().query_mode
    if mode is None and wanted not in modes and modes:
        wanted = "latest" if "latest" in modes else "pinned"
    cells: dict[str, _Cells] = {gallery: {} for gallery in ("local", "global", "local_all", "global_all")}
    for row in rows:
        if row.mode == wanted:
            cells[row.gallery][row.release_order, row.task_order] = row
    measured = cells["local"]
    i_orders = sorted({i for i, _ in measured if i > 0})
    t_orders = sorted({t for i, t in measured if i > 0})
    local = _matrix(cells["local"], i_orders, t_orders)
    union = _matrix(cells["global"], i_orders, t_orders)
    last = i_orders[-1] if i_orders else 0
    earlier = [t for t in t_orders if t < last]
    earlier_local = _current_and_final(cells["local"], earlier, last)
    earlier_union = _current_and_final(cells["global"], earlier, last)
    return ForgettingView(
        tasks=[tasks[t].name for t in t_orders],
        task_ids=[tasks[t].id for t in t_orders],
        releases=[releases.get(i) or tasks[i].release_id or "" for i in i_orders],
        mode=wanted,
        modes=modes,
        matrix_local=local,
        matrix_global=union,
        matrix_local_all=_matrix(cells["local_all"], i_orders, t_orders),
        matrix_global_all=_matrix(cells["global_all"], i_orders, t_orders),
        bwf_local=backward_forgetting(*earlier_local),
        bwf_global=backward_forgetting(*earlier_union),
        fr=forgetting_rate(*earlier_local),
        hm=harmonic_mean(*_current_and_final(cells["local"], t_orders, last)),
        zero_shot=[measured[0, t].r1 if (0, t) in measured else None for t in t_orders],
        recall_over_time_local=[_mean(row) for row in local],
        recall_over_time_global=[_mean(row) for row in union],
        router_accuracy=[_router_accuracy(cells["global"], i) for i in i_orders],
        held_out=[tasks[t].held_out for t in t_orders],  # type: ignore[misc]
    )


def backward_forgetting(current: Sequence[float], final: Sequence[float]) -> float | None:
    """BWF: mean over t < T of A[t, t] − A[T, t]. None when T < 2.

    Args:
        current: A[t, t] for t < T.
        final: A[T, t] for t < T.
    """
    rate = forgetting_rate(current, final)
    return None if rate is None else rate / len(current)


def forgetting_rate(current: Sequence[float], final: Sequence[float]) -> float | None:
    """FR: the sum over t < T of A[t, t] − A[T, t]. None when T < 2."""
    if not current:
        return None
    return sum(now - then for now, then in zip(current, final, strict=True))


def harmonic_mean(current: Sequence[float], final: Sequence[float]) -> float | None:
    """HM: harmonic mean of the mean current and the mean final Recall@1, over t ≤ T. None without tasks."""
    if not current:
        return None
    a, b = sum(current) / len(current), sum(final) / len(final)
    return 2 * a * b / (a + b) if a + b else 0.0


def _matrix(cells: _Cells, i_orders: list[int], t_orders: list[int]) -> Matrix:
    return [[cells[i, t].r1 if t <= i and (i, t) in cells else None for t in t_orders] for i in i_orders]


def _current_and_final(cells: _Cells, tasks: Sequence[int], last: int) -> tuple[list[float], list[float]]:
    """A[t, t] and A[T, t], for the tasks that have both."""
    both = [t for t in tasks if (t, t) in cells and (last, t) in cells]
    return [cells[t, t].r1 for t in both], [cells[last, t].r1 for t in both]


def _mean(row: Sequence[float | None]) -> float | None:
    known = [value for value in row if value is not None]
    return sum(known) / len(known) if known else None


def _router_accuracy(cells: _Cells, i: int) -> float | None:
    """Share of all queries, of all tasks up to i, whose own task was the first candidate."""
    rows = [row for (release, _), row in cells.items() if release == i and row.routing1 is not None]
    queries = sum(row.queries for row in rows)
    return sum((row.routing1 or 0) * row.queries for row in rows) / queries if queries else None
