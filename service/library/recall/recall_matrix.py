"""The recall matrix A[i, t] of the catalog and the measures derived from it.

:mod:`models.forgetting_measures` defines the measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache, cached
from sqlalchemy import select

from cinestrata_schemas.library import LiteratureMeasures, RecallFigures, RecallMatrix
from models.forgetting_measures import backward_forgetting, forgetting_rate, harmonic_mean
from service.catalog.database import session_scope
from service.catalog.tables import Recall
from service.library.recall.cell_means import query_mean, reduce_bins, weighted_mean
from service.library.recall.newest_recall import recall_figures
from service.library.recall.recall_bins import bin_means, bin_starts, describe_bins
from service.library.recall.recall_cells import LearnedTask, RecallCells, nullable, read_recall_cells
from service.library.recall.recall_losses import GALLERIES, measured_losses
from service.library.recall.served_recall import read_served_recall, until_served

__all__ = [
    "DEFAULT_DOMAINS",
    "DEFAULT_ROWS",
    "ForgettingMeasures",
    "forgetting_measures",
    "literature_measures",
    "read_recall_matrix",
]

DEFAULT_ROWS = 50
DEFAULT_DOMAINS = 100


@dataclass(frozen=True)
class ForgettingMeasures:
    """Measures of forgetting of a library; None where undefined."""

    bwf_local: float | None
    bwf_global: float | None
    fr: float | None
    hm: float | None


@cached(LRUCache(8), key=lambda cells: cells.version, lock=Lock())
def forgetting_measures(cells: RecallCells) -> ForgettingMeasures:
    """Return the measures of the cells of the local and the global gallery."""
    local, union = (nullable(cells.square(gallery)) for gallery in ("local", "global"))
    return ForgettingMeasures(
        bwf_local=backward_forgetting(local),
        bwf_global=backward_forgetting(union),
        fr=forgetting_rate(local),
        hm=harmonic_mean(local),
    )


def literature_measures(cells: RecallCells, gallery: str) -> LiteratureMeasures:
    """Return the measures of the papers in one gallery, in which every domain has the same weight."""
    matrix = nullable(cells.square(gallery))
    return LiteratureMeasures(
        bwf=backward_forgetting(matrix), fr=forgetting_rate(matrix), hm=harmonic_mean(matrix)
    )


def read_recall_matrix(
    *,
    rows: int = DEFAULT_ROWS,
    first_domain: int = 1,
    domains: int = DEFAULT_DOMAINS,
) -> RecallMatrix:
    """Read the recall matrix: domains as columns, releases or bins of them as rows.

    Args:
        rows: Maximum number of rows. A matrix with more releases has bins of neighboring releases as rows.
        first_domain: First column, counted from 1.
        domains: Maximum number of columns.
    """
    cells = read_recall_cells(GALLERIES)
    served = until_served(cells)
    columns = slice(first_domain - 1, first_domain - 1 + domains)
    binned = _BinnedRows(cells, bin_starts(len(cells.releases), rows))
    newest_of_rows = [cells.releases[row.last - 1] for row in binned.rows]
    shown = cells.tasks[columns]
    measures = forgetting_measures(cells)
    zero_shot = cells.galleries["local"].r1[0]
    router_accuracy = [cells.galleries["global"].router_accuracy(task.order) for task in cells.releases]
    return RecallMatrix(
        tasks=[task.name for task in shown],
        task_ids=[task.id for task in shown],
        releases=[task.release for task in newest_of_rows],
        mode=cells.mode,
        **{f"matrix_{gallery}": nullable(binned.matrix(gallery, columns)) for gallery in GALLERIES},
        bwf_local=measures.bwf_local,
        bwf_global=measures.bwf_global,
        fr=measures.fr,
        hm=measures.hm,
        zero_shot=nullable(zero_shot[[task.order for task in shown]]),
        queries=binned.queries(columns),
        recall_over_time_local=nullable(binned.recall_over_time("local")),
        recall_over_time_global=nullable(binned.recall_over_time("global")),
        router_accuracy=nullable(binned.means(np.array(router_accuracy, float))),
        held_out=[task.held_out for task in shown],  # type: ignore[misc]
        after=[task.name for task in newest_of_rows],
        newest=_newest_row(cells, shown),
        losses=measured_losses(served),
        served=read_served_recall(served),
        rows=binned.rows,
        first_domain=first_domain,
        domains=len(cells.tasks),
    )


class _BinnedRows:
    """Rows of the matrix, which are bins of releases if it has many."""

    def __init__(self, cells: RecallCells, starts: npt.NDArray[np.intp]) -> None:
        self._cells, self._starts = cells, starts
        self._is_binned = len(starts) < len(cells.releases)
        self.rows = describe_bins(cells.releases, slice(0, len(cells.releases)), starts)

    def matrix(self, gallery: str, columns: slice) -> npt.NDArray[np.float64]:
        """Recall@1 of each row on some domains; of a bin the mean, weighted by queries."""
        values = self._cells.matrix(gallery)[:, columns]
        if not self._is_binned:
            return values
        every_column = np.arange(values.shape[1], dtype=np.intp)
        return weighted_mean(values, self._cells.queries(gallery)[:, columns], self._starts, every_column)

    def queries(self, columns: slice) -> list[list[int]]:
        """Number of queries of each cell; of a bin the largest."""
        values = self._cells.queries("local")[:, columns]
        if self._is_binned:
            every_column = np.arange(values.shape[1], dtype=np.intp)
            values = reduce_bins(values, self._starts, every_column, np.maximum).astype(np.int64)
        return list(values.tolist())

    def recall_over_time(self, gallery: str) -> npt.NDArray[np.float64]:
        """Mean recall of all domains for each row, weighted by queries."""
        return self.means(query_mean(self._cells.matrix(gallery), self._cells.queries(gallery)))

    def means(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Value of each row from one value per release."""
        return bin_means(values, self._starts) if self._is_binned else values


def _newest_row(cells: RecallCells, tasks: Sequence[LearnedTask]) -> dict[str, list[RecallFigures | None]]:
    if not cells.releases:
        return {gallery: [] for gallery in GALLERIES}
    newest = cells.releases[-1].order
    with session_scope() as session:
        rows = session.scalars(select(Recall).where(Recall.release_order == newest)).all()
    found = {(row.gallery, row.task_order): recall_figures(row) for row in rows}
    return {gallery: [found.get((gallery, task.order)) for task in tasks] for gallery in GALLERIES}
