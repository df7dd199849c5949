"""Measures of learning and forgetting, computed from the recall matrix. Their only definition; it needs no torch.

A[i][t] is the recall (at 1, unless a table states another depth) of release i on the queries of task t, both counted
from 0. None marks values that were not measured: those above the diagonal, and those of tasks without queries. Rows may
be longer than the number of releases. Measures have the unit of the matrix: shares, 0..1, or percentages.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]


def forgetting_rates(matrix: Matrix) -> list[float | None]:
    """Compute FR_t = A[t][t] − A[n][t] for each task, where n is the last release (bmu-moco); a gain is negative."""
    return [
        _difference(current, final) for current, final in zip(_current(matrix), _final(matrix), strict=True)
    ]


def forgetting_rate(matrix: Matrix) -> float | None:
    """Compute FR: the sum (not the mean) of the tasks' forgetting rates (bmu-moco). None before the second task."""
    rates = _measured(forgetting_rates(matrix)[:-1])
    return sum(rates) if rates else None


def backward_forgetting(matrix: Matrix) -> float | None:
    """Compute BWF_T = mean over t < T of A[t][t] − A[T][t] (ctvr-ffa-tame); lower is better, a gain is negative.

    None before the second task. The local matrix gives BWF local, the global matrix BWF global.
    """
    return _mean(forgetting_rates(matrix)[:-1])


def harmonic_mean(matrix: Matrix) -> float | None:
    """Compute HM = 2cf / (c + f), with mean current recall c and mean final recall f (bmu-moco).

    This is the harmonic mean of the two means, not the mean of the tasks' harmonic means; 0 if both means are 0. Only
    tasks that have both values count.
    """
    both = [
        (current, final)
        for current, final in zip(_current(matrix), _final(matrix), strict=True)
        if current is not None and final is not None
    ]
    if not both:
        return None
    c, f = (sum(values) / len(both) for values in zip(*both, strict=True))
    return 2 * c * f / (c + f) if c + f else 0.0


def _current(matrix: Matrix) -> list[float | None]:
    return [row[task] for task, row in enumerate(matrix)]


def _final(matrix: Matrix) -> list[float | None]:
    return list(matrix[-1][: len(matrix)]) if matrix else []


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _measured(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    measured = _measured(values)
    return sum(measured) / len(measured) if measured else None
