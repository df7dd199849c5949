"""What the recall matrix says of learning and forgetting; the one place where these measures are defined.

A[i][t] is the recall (at 1, unless a table says otherwise) of release i on the queries of task t, both counted from
0 here. None stands for what was not measured: above the diagonal, and wherever a task has no queries. Rows may be wider
than there are releases yet. The unit is the matrix's own: shares, 0..1, or percents.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "Matrix",
    "backward_forgetting",
    "forgetting_rate",
    "forgetting_rates",
    "forward_transfer",
    "harmonic_mean",
    "learning_gain",
    "mean_current",
    "mean_final",
]

Matrix = Sequence[Sequence[float | None]]


def forgetting_rates(matrix: Matrix) -> list[float | None]:
    """FR_t = A[t][t] − A[n][t] of every task, n the last release (bmu-moco); not clipped at 0: a gain is below it."""
    return [_minus(current, final) for current, final in zip(_current(matrix), _final(matrix), strict=True)]


def forgetting_rate(matrix: Matrix) -> float | None:
    """FR: the sum of the tasks' forgetting rates (bmu-moco; a sum and not a mean). None before the second task."""
    rates = _known(forgetting_rates(matrix)[:-1])
    return sum(rates) if rates else None


def backward_forgetting(matrix: Matrix) -> float | None:
    """BWF_T = mean over t < T of A[t][t] − A[T][t] (ctvr-ffa-tame); lower is better, below 0 is a gain.

    None before the second task. Over the local matrix it is BWF local, over the global one BWF global.
    """
    return _mean(forgetting_rates(matrix)[:-1])


def mean_current(matrix: Matrix) -> float | None:
    """Mean over t of A[t][t]: how well each task was found when it had just been learned."""
    return _mean(_current(matrix))


def mean_final(matrix: Matrix) -> float | None:
    """Mean over t of A[n][t]: how well the tasks are found now."""
    return _mean(_final(matrix))


def harmonic_mean(matrix: Matrix) -> float | None:
    """HM = 2cf / (c + f) of mean current and mean final recall (bmu-moco), over the tasks that have both.

    The harmonic mean of the two means, and not the mean of the tasks' harmonic means; 0 when both are.
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


def learning_gain(matrix: Matrix, zero_shot: Sequence[float | None]) -> float | None:
    """Mean over t of A[t][t] − Z[t]: what learning a task adds to the backbone as it came."""
    return _mean([_minus(now, before) for now, before in zip(_current(matrix), zero_shot, strict=True)])


def forward_transfer(before: Sequence[float | None], zero_shot: Sequence[float | None]) -> float | None:
    """FWT: mean over t > 1 of A[t−1][t] − Z[t]: what the tasks before it did for a task that is yet to be learned.

    Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning" (NeurIPS 2017), with the backbone as
    it came in place of a random initialisation. None before the second task.

    Args:
        before: for each task, the recall just before it was learned; what is said of the first does not count.
        zero_shot: for each task, the recall Z of the backbone as it came.
    """
    return _mean([_minus(b, z) for b, z in zip(before, zero_shot, strict=True)][1:])


def _current(matrix: Matrix) -> list[float | None]:
    return [row[task] for task, row in enumerate(matrix)]


def _final(matrix: Matrix) -> list[float | None]:
    return list(matrix[-1][: len(matrix)]) if matrix else []


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None
