"""Galleries, ranks and forgetting against hand-computed examples, slow references and tables of the papers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.forgetting_measures import (
    Matrix,
    backward_forgetting,
    forgetting_rate,
    forgetting_rates,
    harmonic_mean,
)
from trainer.errors import EvaluationError
from trainer.evaluation.gallery import (
    Gallery,
    Query,
    RankCount,
    rank_by_id,
    recall_at,
    summarize,
    task_gallery,
)
from trainer.task_data import Clip, TaskData
from trainer.video_embedding import MemoryShard

SHARD = MemoryShard(np.array([10, 11]), np.eye(2, dtype=np.float32))


def test_gallery_holds_out_test_videos() -> None:
    clips = (
        Clip("day-0", 10, Path("0.npy"), ("5", "again 5"), "train"),
        Clip("day-1", 11, Path("1.npy"), ("20", "again 20"), "test"),
    )
    task = TaskData("day", "day", clips)
    gallery = task_gallery(task, SHARD)
    assert (gallery.task, gallery.held_out.tolist()) == ("day", [11])
    assert gallery.queries == (Query("20", 11),)
    assert [query.text for query in task_gallery(task, SHARD, None).queries] == ["20", "again 20"]


def test_queries_of_other_videos_are_refused() -> None:
    with pytest.raises(EvaluationError, match="task day: a query belongs to video 10, which is not held out"):
        Gallery("day", SHARD, np.array([11]), (Query("5", 10),))


SCORES = np.array([[0.9, 0.8, 0.1, 0.0], [0.2, 0.3, 0.4, 0.5], [0.7, 0.7, 0.7, 0.1]])


@pytest.mark.parametrize(
    ("scores", "ids", "truth", "ranks"),
    [
        (SCORES, [10, 11, 12, 13], [10, 10, 10], [1, 4, 2]),
        (SCORES, [10, 11, 12, 13], [11, 13, 13], [2, 1, 4]),
        (SCORES[:, [2, 0, 3, 1]], [12, 10, 13, 11], [11, 13, 12], [2, 1, 2]),  # videos are identified by ID
        ([[0.5, 0.5, 0.1]], [1, 2, 3], [1], [1.5]),  # a tie for first place is a miss
        # Rounding breaks no tie.
        (np.array([[0.5, 0.5 + 3e-8, 0.5 - 3e-8]], np.float32), [1, 2, 3], [1], [2]),
    ],
)
def test_rank_counts_better_items_and_half_of_equal_items(
    scores: np.ndarray, ids: list[int], truth: list[int], ranks: list[float]
) -> None:
    assert rank_by_id(np.asarray(scores), ids, truth).tolist() == ranks
    assert recall_at(np.array(ranks), 1) == np.mean([rank == 1 for rank in ranks])


def test_ranks_counted_in_parts_are_equal() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20, 30)).round(1)  # rounding makes ties
    truth = rng.integers(0, 30, 20)
    count = RankCount(scores[np.arange(20), truth])
    for rows in (slice(0, 7), slice(7, 20)):
        for part in np.array_split(scores[rows], [4, 5, 17], axis=1):
            count.add(part, rows)
    assert count.ranks().tolist() == rank_by_id(scores, range(30), truth.tolist()).tolist()
    slow = []
    for row, column in zip(scores, truth, strict=True):
        better = sum(s > row[column] + 1e-6 for s in row)
        equal = sum(abs(s - row[column]) <= 1e-6 for s in row) - 1
        slow.append(1 + better + equal / 2)
    assert count.ranks().tolist() == slow


def test_invalid_galleries_are_refused() -> None:
    with pytest.raises(EvaluationError, match="true video 99 is not in the gallery"):
        rank_by_id(SCORES, [1, 2, 3, 4], [1, 99, 2])
    with pytest.raises(EvaluationError, match="twice"):
        rank_by_id(SCORES, [1, 2, 2, 4], [1, 1, 1])
    with pytest.raises(EvaluationError, match="not a finite number"):
        rank_by_id(np.array([[np.nan, 0.1]]), [1, 2], [1])
    count = RankCount(np.array([0.5]))
    count.add(np.array([[0.1, 0.9]]))
    with pytest.raises(EvaluationError, match="true video is not in the gallery"):
        count.ranks()


def test_summary_has_recalls_and_rank_statistics() -> None:
    recall = summarize(np.array([1, 1, 4, 10, 14.0]))
    assert recall is not None
    assert (recall.r1, recall.r5, recall.r10) == (0.4, 0.6, 0.8)
    assert (recall.medr, recall.meanr, recall.queries) == (4, 6, 5)
    assert summarize(np.array([])) is None


MATRIX: Matrix = [[50.0, None, None], [44.0, 60.0, None], [40.0, 61.0, 30.0]]


def test_forgetting_equals_figures_computed_by_hand() -> None:
    assert backward_forgetting(MATRIX) == pytest.approx(((50 - 40) + (60 - 61)) / 2)
    assert backward_forgetting(MATRIX[:2]) == pytest.approx(6)
    assert forgetting_rates(MATRIX) == [10, -1, 0]
    assert forgetting_rate(MATRIX) == 9  # a sum in which gains are not clipped
    assert harmonic_mean(MATRIX) == pytest.approx(2 * 140 * 131 / (3 * 271))


def test_undefined_forgetting_is_none() -> None:
    assert backward_forgetting([[50.0]]) is None
    assert backward_forgetting([]) is harmonic_mean([]) is forgetting_rate([]) is None
    assert harmonic_mean([[0.0]]) == 0
    without_first: Matrix = [[None], [None, 20.0], [None, 15.0, 5.0]]  # the first task has no queries
    assert backward_forgetting(without_first) == forgetting_rate(without_first) == 5
    lost: Matrix = [[50.0], [40.0, None], [30.0, 20.0, 10.0]]  # task 2 has no recall from when it was learned
    assert harmonic_mean(lost) == pytest.approx(2 * 30 * 20 / 50)
    assert harmonic_mean([[None], [None, None]]) is None


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
