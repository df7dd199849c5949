"""The complete recall matrix A[i, t] of the catalog and the measures derived from it.

:mod:`models.forgetting_measures` defines the measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from cachetools import LRUCache, cached
from sqlalchemy import select

from models.forgetting_measures import backward_forgetting, forgetting_rate, harmonic_mean
from service.catalog.database import session_scope
from service.catalog.tables import Recall
from service.core.schemas import RecallFigures, RecallMatrix
from service.core.settings import QueryMode
from service.library.recall.cell_means import query_mean
from service.library.recall.newest_recall import recall_figures
from service.library.recall.recall_cells import RecallCells, nullable, read_recall_cells
from service.library.recall.served_recall import GALLERIES, read_served_recall

__all__ = ["ForgettingMeasures", "forgetting_measures", "read_recall_matrix"]


@dataclass(frozen=True)
class ForgettingMeasures:
    """Measures of forgetting of a library; None where undefined."""

    bwf_local: float | None
    bwf_global: float | None
    fr: float | None
    hm: float | None


@cached(LRUCache(8), key=lambda cells: (cells.version, cells.mode), lock=Lock())
def forgetting_measures(cells: RecallCells) -> ForgettingMeasures:
    """Return the measures of the cells of the local and the global gallery."""
    local, union = (nullable(cells.square(gallery)) for gallery in ("local", "global"))
    return ForgettingMeasures(
        bwf_local=backward_forgetting(local),
        bwf_global=backward_forgetting(union),
        fr=forgetting_rate(local),
        hm=harmonic_mean(local),
    )


def read_recall_matrix(mode: QueryMode | None = None) -> RecallMatrix:
    """Read the complete recall matrix of one query mode.

    Its size grows with the square of the number of domains; :func:`~service.library.recall.recall_map.read_recall_map`
    has a bound.

    Args:
        mode: Query mode; None: the mode in which the service searches, or the mode with results.
    """
    cells = read_recall_cells(mode, GALLERIES)
    matrices = {gallery: nullable(cells.matrix(gallery)) for gallery in GALLERIES}
    over_time = {
        gallery: nullable(query_mean(cells.matrix(gallery), cells.queries(gallery)))
        for gallery in ("local", "global")
    }
    measures = forgetting_measures(cells)
    zero_shot = cells.galleries["local"].r1[0]
    return RecallMatrix(
        tasks=[task.name for task in cells.tasks],
        task_ids=[task.id for task in cells.tasks],
        releases=[task.release for task in cells.releases],
        mode=cells.mode,
        modes=cells.modes,
        **{f"matrix_{gallery}": matrix for gallery, matrix in matrices.items()},
        bwf_local=measures.bwf_local,
        bwf_global=measures.bwf_global,
        fr=measures.fr,
        hm=measures.hm,
        zero_shot=nullable(zero_shot[[task.order for task in cells.tasks]]),
        queries=cells.queries("local").tolist(),
        recall_over_time_local=over_time["local"],
        recall_over_time_global=over_time["global"],
        router_accuracy=[cells.galleries["global"].router_accuracy(task.order) for task in cells.releases],
        held_out=[task.held_out for task in cells.tasks],  # type: ignore[misc]
        after=[task.name for task in cells.releases],
        newest=_newest_row(cells),
        served=read_served_recall(cells if mode is None else None),
    )


def _newest_row(cells: RecallCells) -> dict[str, list[RecallFigures | None]]:
    if not cells.releases:
        return {gallery: [] for gallery in GALLERIES}
    newest = cells.releases[-1].order
    with session_scope() as session:
        rows = session.scalars(
            select(Recall).where(Recall.release_order == newest, Recall.mode == cells.mode)
        ).all()
    found = {(row.gallery, row.task_order): recall_figures(row) for row in rows}
    return {gallery: [found.get((gallery, task.order)) for task in cells.tasks] for gallery in GALLERIES}
