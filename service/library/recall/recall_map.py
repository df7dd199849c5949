"""The recall matrix as a map of bounded size: bins of releases and domains, and a window to zoom into.

The answer has at most ``bins`` rows and columns for any number of domains. A bin of the whole library is a window of
its own, so that each cell can be reached in a few steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cinestrata_schemas.library import DomainRecall, RecallMap
from service.core.errors import InvalidInput
from service.library.recall.cell_means import query_mean, reduce_bins, weighted_mean
from service.library.recall.recall_bins import bin_means, bin_starts, describe_bins
from service.library.recall.recall_cells import RecallCells, nullable, read_recall_cells
from service.library.recall.recall_losses import GALLERIES, measured_losses
from service.library.recall.recall_matrix import forgetting_measures, literature_measures
from service.library.recall.served_recall import read_served_recall, until_served

__all__ = ["MAX_BINS", "MAX_LINES", "MapWindow", "read_recall_map"]

MAX_BINS = 60
MAX_LINES = 8  # domains drawn as lines: the number of colors of the pages
_WORST_LINES = 3  # of a window with more domains
_DIGITS = 4  # of shares 0..1, a hundredth of a percent

_ONE_ROW = np.zeros(1, np.intp)

_Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MapWindow:
    """Rows and columns of the recall matrix, counted from 1 and inclusive; None: up to the edge.

    Attributes:
        first_release, last_release: Rows.
        first_domain, last_domain: Columns.
    """

    first_release: int | None = None
    last_release: int | None = None
    first_domain: int | None = None
    last_domain: int | None = None


def read_recall_map(
    gallery: str = "local",
    window: MapWindow | None = None,
    bins: int = 40,
) -> RecallMap:
    """Read a window of the recall matrix, in bins if it has more rows or columns.

    Args:
        gallery: ``local``, ``global``, ``local_all`` or ``global_all``.
        window: Rows and columns; None: all. Bounds beyond the matrix are moved to its edge.
        bins: Maximum number of rows and of columns of the map.

    Raises:
        InvalidInput: the first row or column of the window is after the last.
        Unavailable: the catalog is unreachable.
    """
    window = window or MapWindow()
    cells = read_recall_cells(GALLERIES)
    served = until_served(cells)
    rows = _bounds("release", window.first_release, window.last_release, len(cells.releases))
    columns = _bounds("domain", window.first_domain, window.last_domain, len(cells.tasks))
    matrix, weights = cells.matrix(gallery), cells.queries(gallery)
    inner, inner_weights = matrix[rows, columns], weights[rows, columns]
    row_starts, column_starts = (bin_starts(len(axis), bins) for axis in (inner, inner.T))
    is_binned = len(row_starts) < inner.shape[0] or len(column_starts) < inner.shape[1]
    low, high = (reduce_bins(inner, row_starts, column_starts, take) for take in (np.fmin, np.fmax))
    measures = forgetting_measures(cells)
    series = _Series(cells, gallery, rows, columns, row_starts)
    measured = matrix[~np.isnan(matrix)]
    return RecallMap(
        mode=cells.mode,
        gallery=gallery,  # type: ignore[arg-type]
        releases=len(cells.releases),
        domains=len(cells.tasks),
        has_derived_split=any(task.held_out == "derived" for task in cells.tasks),
        rows=describe_bins(cells.releases, rows, row_starts),
        columns=describe_bins(cells.tasks, columns, column_starts),
        mean=_rounded(weighted_mean(inner, inner_weights, row_starts, column_starts)),
        queries=reduce_bins(inner_weights, row_starts, column_starts, np.maximum).astype(int).tolist(),
        low=_rounded(low) if is_binned else None,
        high=_rounded(high) if is_binned else None,
        maximum=_round(float(measured.max())) if measured.size else None,
        zero_shot=_rounded(_zero_shot(cells, gallery, columns, column_starts)),
        zero_shot_queries=_zero_shot_queries(cells, gallery, columns, column_starts),
        recall_mean=_rounded(series.mean()),
        recall_low=_rounded(series.quantile(0.1, np.fmin)),
        recall_high=_rounded(series.quantile(0.9, np.fmax)),
        lines=series.lines(),
        router_accuracy=_rounded(series.router_accuracy()),
        router_queries=series.router_queries(),
        losses=measured_losses(served),
        literature=literature_measures(served, gallery),
        served=read_served_recall(served),
        bwf_local=measures.bwf_local,
        bwf_global=measures.bwf_global,
        fr=measures.fr,
        hm=measures.hm,
    )


def _bounds(axis: str, first: int | None, last: int | None, length: int) -> slice:
    if first is not None and last is not None and first > last:
        raise InvalidInput.at(
            f"first_{axis}",
            f"first_{axis} is {first}, after last_{axis}, which is {last}.",
            f"Send first_{axis} ≤ last_{axis}.",
        )
    start = min(max(first or 1, 1), max(length, 1)) - 1
    return slice(start, max(min(last or length, length), min(start + 1, length)))


def _zero_shot(cells: RecallCells, gallery: str, columns: slice, starts: npt.NDArray[np.intp]) -> _Values:
    """Recall of the untrained backbone of each bin of columns; NaN in a gallery in which it is not measured."""
    orders = [task.order for task in cells.tasks[columns]]
    shown = cells.galleries[gallery]
    return np.asarray(weighted_mean(shown.r1[:1, orders], shown.queries[:1, orders], _ONE_ROW, starts)[0])


def _zero_shot_queries(
    cells: RecallCells, gallery: str, columns: slice, starts: npt.NDArray[np.intp]
) -> list[int]:
    """Largest number of queries of each bin of columns for the untrained backbone."""
    orders = [task.order for task in cells.tasks[columns]]
    queries = cells.galleries[gallery].queries[:1, orders]
    return [int(number) for number in reduce_bins(queries, _ONE_ROW, starts, np.maximum)[0]]


class _Series:
    """Curves over the bins of releases, for the domains of a window."""

    def __init__(
        self,
        cells: RecallCells,
        gallery: str,
        rows: slice,
        columns: slice,
        starts: npt.NDArray[np.intp],
    ) -> None:
        self._cells, self._rows, self._columns, self._starts = cells, rows, columns, starts
        self._zero_shot = cells.galleries[gallery].r1[0]
        self._matrix = cells.matrix(gallery)[:, columns]
        self._inner = self._matrix[rows]
        self._queries = cells.queries(gallery)[rows, columns]
        self._learned = cells.when_learned(gallery)[columns]

    def mean(self) -> _Values:
        """Mean over the releases of each bin of the mean over domains, weighted by queries."""
        return bin_means(query_mean(self._inner, self._queries), self._starts)

    def quantile(self, share: float, extreme: np.ufunc) -> _Values:
        """Extreme over the releases of each bin of a quantile over domains."""
        values = _row_quantile(self._inner, share)
        return np.asarray(extreme.reduceat(values, self._starts)) if values.size else values

    def router_accuracy(self) -> _Values:
        """Mean router accuracy of the releases of each bin."""
        union = self._cells.galleries["global"]
        shares = [union.router_accuracy(task.order) for task in self._cells.releases[self._rows]]
        return bin_means(np.array(shares, float), self._starts)

    def router_queries(self) -> list[int]:
        """Largest number of routed queries of the releases of each bin."""
        routable = self._cells.galleries["global"].routable
        numbers = np.array([routable[task.order] for task in self._cells.releases[self._rows]], np.int64)
        return [int(number) for number in np.maximum.reduceat(numbers, self._starts)] if len(numbers) else []

    def lines(self) -> list[DomainRecall]:
        """All domains of a small window; of a larger one, those with the largest loss since they were learned."""
        tasks = self._cells.tasks[self._columns]
        last = self._matrix[-1] if len(self._matrix) else np.zeros(0)
        losses = self._learned - last  # since the domain was learned
        shown = range(len(tasks))
        if len(tasks) > MAX_LINES:
            worst = sorted(shown, key=lambda task: -np.nan_to_num(losses[task]))[:_WORST_LINES]
            shown = sorted(task for task in worst if losses[task] > 0)  # type: ignore[assignment]
        return [
            DomainRecall(
                task_id=tasks[task].id,
                name=tasks[task].name,
                loss=_round(losses[task]),
                zero_shot=_round(self._zero_shot[tasks[task].order]),
                recall=_rounded(bin_means(self._inner[:, task], self._starts)),
            )
            for task in shown
        ]


def _row_quantile(matrix: _Values, share: float) -> _Values:
    """Quantile of the measured cells of each row, with linear interpolation; NaN without measured cells."""
    if not matrix.size:
        return np.full(len(matrix), np.nan)
    ordered = np.sort(matrix, axis=1)  # NaN last
    last = np.maximum((~np.isnan(matrix)).sum(axis=1) - 1, 0)
    position = last * share
    below = position.astype(np.intp)
    lower, upper = (
        np.take_along_axis(ordered, index[:, None], axis=1)[:, 0]
        for index in (below, np.minimum(below + 1, last))
    )
    return np.asarray(lower + (upper - lower) * (position - below))


def _round(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), _DIGITS)


def _rounded(values: _Values) -> list:  # type: ignore[type-arg]
    return list(nullable(np.round(values, _DIGITS)))
