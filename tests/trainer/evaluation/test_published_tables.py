"""The definitions of FR, HM, BWF and pooled recall, compared with the printed tables of the papers.

A row of bmu-moco's tables gives, for five tasks, the recall of the last release and how much was forgotten; three
overall figures follow from these. Where a printed one does not, the one that follows is noted as a misprint, so that
every cell of every row is checked. Values are percents.

ctvr-ffa-tame prints no recalls of single tasks, so its BWF cannot be checked but for zero-shot, where nothing moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from models.forgetting_measures import (
    Matrix,
    backward_forgetting,
    forgetting_rate,
    harmonic_mean,
    mean_current,
    mean_final,
)
from trainer.evaluation.retrieval_metrics import summarize

ROUNDING = 0.0151  # of sums and means of figures with two decimals


@dataclass(frozen=True)
class Printed:
    """A row: R@k of the last release and FR for tasks 1 to 4, R@k of task 5; overall R@k, FR and HM.

    ``misprints`` has the overall figures that follow from the other figures of the row.
    """

    table: str
    method: str
    cells: tuple[float, ...]
    misprints: dict[str, float] = field(default_factory=dict)

    @property
    def final(self) -> tuple[float, ...]:
        return self.cells[0:9:2]

    @property
    def forgotten(self) -> tuple[float, ...]:
        return (*self.cells[1:8:2], 0.0)

    @property
    def overall(self) -> dict[str, float]:
        """Recall, FR and HM with misprints corrected."""
        return dict(zip(("recall", "fr", "hm"), self.cells[9:], strict=True)) | self.misprints

    @property
    def matrix(self) -> Matrix:
        """A[i][t], as far as the table determines it; the other cells do not enter any measure."""
        current = [r + f for r, f in zip(self.final, self.forgotten, strict=True)]
        return [[*[None] * task, current[task], *[None] * (4 - task)] for task in range(4)] + [[*self.final]]


def _row(table: str, method: str, cells: str, **misprints: float) -> Printed:
    return Printed(table, method, tuple(map(float, cells.split())), misprints)


# fmt: off
ROWS = [
    _row("1", "Base-MoCo", "38.99 15.30 18.61 15.23 28.00 5.60 28.22 7.27 40.28 30.82 43.40 34.67", hm=34.62),
    _row("1", "LwF", "42.02 12.27 19.95 14.87 28.90 6.00 29.91 6.98 37.91 32.24 40.12 35.81", recall=31.74, hm=35.30),
    _row("1", "ER-ring", "41.99 12.30 22.09 11.79 29.80 5.40 30.31 5.08 38.53 32.54 34.57 35.67"),
    _row("1", "DER", "40.15 14.14 21.35 12.65 28.80 5.00 30.71 4.09 39.96 32.19 35.88 35.39", hm=35.42),
    _row("1", "Co2L", "41.23 13.06 21.74 13.06 27.50 5.30 30.41 5.38 39.29 31.58 34.48 35.06",
         recall=32.03, fr=36.80, hm=35.33),
    _row("1", "LUMP", "40.16 14.13 21.78 12.37 30.50 3.00 29.91 4.99 39.39 32.45 34.49 35.56", recall=32.35, hm=35.47),
    _row("1", "BMU-MoCo (local)", "46.82 7.47 23.27 10.84 30.00 3.40 31.21 4.08 41.94 34.65 25.79 37.05"),
    _row("1", "BMU-MoCo", "48.48 5.81 23.45 10.43 30.80 2.90 32.80 3.49 41.83 35.47 22.63 37.59"),
    _row("2", "global, without BMU", "38.95 15.97 18.51 15.45 30.10 4.60 28.91 6.78 39.89 31.47 42.75 35.16",
         recall=31.27, fr=42.80, hm=35.04),
    _row("2", "both, without BMU", "41.44 12.85 21.68 13.22 29.40 4.90 29.31 6.08 39.96 32.35 36.95 35.67", fr=37.05),
    _row("2", "BMU, global", "46.35 7.94 23.16 10.99 30.60 3.70 31.41 5.28 41.70 34.64 27.91 37.22"),
    _row("3", "BMU-MoCo-fixed", "51.36 2.93 23.12 7.38 25.10 1.50 30.11 2.00 38.19 34.07 13.81 35.12",
         recall=33.58, hm=34.90),
    _row("S1", "Base-MoCo", "70.93 14.72 44.62 21.42 56.50 5.70 55.73 9.57 70.36 59.63 51.41 64.36"),
    _row("S1", "LwF", "74.23 11.42 46.98 18.65 55.10 4.90 56.83 8.17 71.01 60.83 43.14 64.86"),
    _row("S1", "ER-ring", "75.13 10.52 48.77 16.37 56.00 5.50 59.72 4.79 68.79 61.68 37.18 65.19"),
    _row("S1", "DER", "72.01 13.64 47.53 17.59 57.10 4.20 59.52 3.99 70.12 61.26 39.42 64.96"),
    _row("S1", "Co2L", "73.33 12.32 47.90 17.87 55.90 3.60 58.13 6.58 69.72 60.99 40.47 64.77", fr=40.37),
    _row("S1", "LUMP", "73.39 12.26 46.96 18.28 56.70 5.30 60.92 3.59 69.96 61.59 39.43 65.29"),
    _row("S1", "BMU-MoCo (local)", "79.83 5.82 52.31 13.36 56.70 2.60 59.92 4.99 72.49 64.25 26.77 66.82"),
    _row("S1", "BMU-MoCo", "81.39 4.26 52.21 12.54 56.70 2.20 61.02 4.18 72.17 64.69 23.18 66.93"),
    _row("S2", "Base-MoCo", "81.33 10.92 59.14 20.34 65.70 6.90 66.30 8.18 80.14 70.52 46.34 74.87"),
    _row("S2", "LwF", "84.10 8.15 61.38 17.48 65.40 5.80 65.80 9.27 80.20 71.38 40.65 75.32", fr=40.70, hm=75.23),
    _row("S2", "ER-ring", "84.43 8.09 63.43 15.03 66.30 4.20 70.59 3.59 79.11 72.77 30.91 75.73"),
    _row("S2", "DER", "81.76 10.49 61.62 16.80 67.80 3.20 70.79 3.79 79.62 72.32 34.28 75.59"),
    _row("S2", "Co2L", "82.97 9.28 61.48 17.53 66.40 3.60 68.59 6.98 79.82 71.85 37.39 75.40"),
    _row("S2", "LUMP", "82.99 9.26 60.89 17.80 67.20 2.30 70.49 4.78 79.23 72.16 34.14 75.42"),
    _row("S2", "BMU-MoCo (local)", "88.24 4.01 66.79 11.94 69.00 1.20 69.79 5.09 81.99 75.16 22.24 77.32"),
    _row("S2", "BMU-MoCo", "89.36 2.89 66.79 11.16 67.50 1.80 71.88 3.19 82.09 75.52 19.04 77.37"),
]
# fmt: on


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.table} {row.method}")
def test_overall_figures_of_bmu_moco_follow_from_task_figures(row: Printed) -> None:
    overall = row.overall
    assert mean_final(row.matrix) == pytest.approx(overall["recall"], abs=ROUNDING)
    assert forgetting_rate(row.matrix) == pytest.approx(overall["fr"], abs=ROUNDING)
    assert harmonic_mean(row.matrix) == pytest.approx(overall["hm"], abs=ROUNDING)
    # BWF of ctvr-ffa-tame is the mean of the terms that FR sums, and hence the difference of the two means.
    forgetting = backward_forgetting(row.matrix)
    current, final = mean_current(row.matrix), mean_final(row.matrix)
    assert forgetting is not None
    assert current is not None
    assert final is not None
    assert forgetting == pytest.approx(overall["fr"] / 4, abs=ROUNDING)
    assert current - final == pytest.approx(4 / 5 * forgetting)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.misprints], ids=lambda row: f"{row.table} {row.method}"
)
def test_misprints_differ_by_more_than_rounding(row: Printed) -> None:
    printed = dict(zip(("recall", "fr", "hm"), row.cells[9:], strict=True))
    assert all(abs(printed[name] - value) > ROUNDING for name, value in row.misprints.items())


def test_some_misprinted_harmonic_means_follow_from_a_misprinted_recall() -> None:
    """HM = 2 c f / (c + f) with c = f + FR / 5: the definition holds there too, for the wrong f."""
    for method in ("LwF", "LUMP"):
        final, rate, mean = next(row.cells[9:] for row in ROWS if (row.table, row.method) == ("1", method))
        current = final + rate / 5
        assert 2 * current * final / (current + final) == pytest.approx(mean, abs=ROUNDING)


def test_hm_combines_two_means_instead_of_averaging_over_tasks() -> None:
    row = next(row for row in ROWS if (row.table, row.method) == ("1", "BMU-MoCo"))
    pairs = [(f + lost, f) for f, lost in zip(row.final, row.forgotten, strict=True)]
    over_tasks = np.mean([2 * c * f / (c + f) for c, f in pairs])
    assert over_tasks == pytest.approx(37.48, abs=ROUNDING)
    assert abs(over_tasks - row.overall["hm"]) > 0.1


@pytest.mark.parametrize(("tables", "shared"), [("123", 54.29), (("S1",), 85.65), (("S2",), 92.25)])
def test_methods_of_bmu_moco_share_the_first_release(tables: str | tuple[str, ...], shared: float) -> None:
    """A[1][1] = final recall + FR is equal to two decimals for all methods: they differ from task 2 on."""
    first = {(row.table, row.method): row.final[0] + row.forgotten[0] for row in ROWS if row.table in tables}
    swapped = {("2", "global, without BMU"): 54.92, ("S2", "ER-ring"): 92.52}  # two digits in the other order
    for key, value in first.items():
        assert value == pytest.approx(swapped.get(key, shared), abs=0.001)


@pytest.mark.parametrize(
    ("queries", "hits", "printed"),
    [
        (2990, (662, 1233, 1535), (22.14, 41.24, 51.34)),  # MSR-VTT, 10 and 20 tasks alike
        (4910, (731, 1717, 2346), (14.89, 34.97, 47.78)),  # ActivityNet
    ],
)
def test_zero_shot_recalls_of_ctvr_are_shares_of_all_queries(
    queries: int, hits: tuple[int, int, int], printed: tuple[float, float, float]
) -> None:
    """One run, no training: R@k are whole numbers of queries of all tasks, and no mean over tasks of unequal size."""
    at_1, at_5, at_10 = hits
    ranks = np.repeat([1, 5, 10, 11], [at_1, at_5 - at_1, at_10 - at_5, queries - at_10])
    recall = summarize(ranks)
    assert recall is not None
    assert (100 * recall.r1, 100 * recall.r5, 100 * recall.r10) == pytest.approx(printed, abs=0.005)
    assert backward_forgetting([[22.14, None], [22.14, 22.14]]) == 0
