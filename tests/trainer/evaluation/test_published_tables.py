"""The definitions of FR, HM and BWF, compared with the printed tables of the papers.

A row of bmu-moco's tables gives, for five tasks, the recall of the last release and how much was forgotten; three
overall figures follow from these. Values are percents. ctvr-ffa-tame prints no recalls of single tasks, so its BWF
cannot be checked but for zero-shot, where nothing moves.
"""

from __future__ import annotations

import numpy as np
import pytest

from models.forgetting_measures import Matrix, backward_forgetting, forgetting_rate, harmonic_mean

ROUNDING = 0.0151  # of sums and means of figures with two decimals

#: Table, method, and R@k of the last release and FR for tasks 1 to 4, R@k of task 5; overall R@k, FR and HM.
ROWS = [
    ("1", "ER-ring", "41.99 12.30 22.09 11.79 29.80 5.40 30.31 5.08 38.53 32.54 34.57 35.67"),
    ("1", "BMU-MoCo (local)", "46.82 7.47 23.27 10.84 30.00 3.40 31.21 4.08 41.94 34.65 25.79 37.05"),
    ("1", "BMU-MoCo", "48.48 5.81 23.45 10.43 30.80 2.90 32.80 3.49 41.83 35.47 22.63 37.59"),
    ("2", "BMU, global", "46.35 7.94 23.16 10.99 30.60 3.70 31.41 5.28 41.70 34.64 27.91 37.22"),
    ("S1", "Base-MoCo", "70.93 14.72 44.62 21.42 56.50 5.70 55.73 9.57 70.36 59.63 51.41 64.36"),
    ("S1", "BMU-MoCo", "81.39 4.26 52.21 12.54 56.70 2.20 61.02 4.18 72.17 64.69 23.18 66.93"),
    ("S2", "ER-ring", "84.43 8.09 63.43 15.03 66.30 4.20 70.59 3.59 79.11 72.77 30.91 75.73"),
    ("S2", "BMU-MoCo", "89.36 2.89 66.79 11.16 67.50 1.80 71.88 3.19 82.09 75.52 19.04 77.37"),
]


@pytest.mark.parametrize(("table", "method", "row"), ROWS)
def test_overall_figures_of_bmu_moco_follow_from_task_figures(table: str, method: str, row: str) -> None:
    cells = [float(cell) for cell in row.split()]
    final, forgotten = cells[0:9:2], cells[1:8:2]
    # A[i][t], as far as the table determines it; the other cells do not enter any measure.
    matrix: Matrix = [
        *([*[None] * task, final[task] + forgotten[task], *[None] * (4 - task)] for task in range(4)),
        final,
    ]
    recall, fr, hm = cells[9:]
    assert np.mean(final) == pytest.approx(recall, abs=ROUNDING)
    assert forgetting_rate(matrix) == pytest.approx(fr, abs=ROUNDING)
    assert harmonic_mean(matrix) == pytest.approx(hm, abs=ROUNDING)
    # BWF of ctvr-ffa-tame is the mean of the terms that FR sums.
    assert backward_forgetting(matrix) == pytest.approx(fr / 4, abs=ROUNDING)
