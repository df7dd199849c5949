"""Ranks and forgetting measures against hand-computed examples and the arithmetic of printed tables."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.errors import EvaluationError
from trainer.evaluate.metrics import (
    Matrix,
    RankCount,
    backward_forgetting,
    forgetting_rate,
    forgetting_rates,
    harmonic_mean,
    learning_gain,
    mean_current,
    mean_final,
    rank_by_id,
    recall_at,
    summarise,
)

SCORES = np.array(
    [
        [0.9, 0.8, 0.1, 0.0],
        [0.2, 0.3, 0.4, 0.5],
        [0.7, 0.7, 0.7, 0.1],
    ]
)


def test_rank_counts_what_is_better_and_half_of_what_is_equal() -> None:
    assert rank_by_id(SCORES, [10, 11, 12, 13], [10, 10, 10]).tolist() == [1, 4, 2]
    assert rank_by_id(SCORES, [10, 11, 12, 13], [11, 13, 13]).tolist() == [2, 1, 4]


def test_truth_is_found_by_id_and_not_by_position() -> None:
    ids, truth = [10, 11, 12, 13], [11, 13, 12]
    shuffled = [2, 0, 3, 1]
    moved = rank_by_id(SCORES[:, shuffled], [ids[i] for i in shuffled], truth)
    assert moved.tolist() == rank_by_id(SCORES, ids, truth).tolist() == [2, 1, 2]


def test_several_captions_of_one_video_are_queries_with_one_truth() -> None:
    ranks = rank_by_id(np.array([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]]), [7, 8], [7, 7, 7])
    assert ranks.tolist() == [1, 2, 1]
    assert recall_at(ranks, 1) == pytest.approx(2 / 3)


def test_a_tie_at_the_top_is_no_hit() -> None:
    ranks = rank_by_id(np.array([[0.5, 0.5, 0.1]]), [1, 2, 3], [1])
    assert ranks.tolist() == [1.5]
    assert recall_at(ranks, 1) == 0
    assert recall_at(ranks, 5) == 1


def test_a_gallery_of_identical_videos_is_not_a_success() -> None:
    ranks = rank_by_id(np.full((4, 9), 0.25), list(range(9)), [0, 3, 5, 8])
    assert ranks.tolist() == [5, 5, 5, 5]


def test_rounding_of_equal_vectors_does_not_break_a_tie() -> None:
    ranks = rank_by_id(np.array([[0.5, 0.5 + 3e-8, 0.5 - 3e-8]], np.float32), [1, 2, 3], [1])
    assert ranks.tolist() == [2]


def test_counting_in_parts_gives_the_same_ranks() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(20, 30)).round(1)  # rounding makes ties
    truth = rng.integers(0, 30, 20)
    count = RankCount(scores[np.arange(20), truth])
    for part in np.array_split(scores, [4, 5, 17], axis=1):
        count.add(part)
    assert count.ranks().tolist() == rank_by_id(scores, range(30), truth.tolist()).tolist()
    slow = []
    for row, own in zip(scores, truth, strict=True):
        better = sum(s > row[own] + 1e-6 for s in row)
        equal = sum(abs(s - row[own]) <= 1e-6 for s in row) - 1
        slow.append(1 + better + equal / 2)
    assert count.ranks().tolist() == slow


def test_wrong_galleries_are_refused() -> None:
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


def test_the_five_figures() -> None:
    recall = summarise(np.array([1, 1, 4, 10, 14.0]))
    assert recall is not None
    assert (recall.r1, recall.r5, recall.r10) == (0.4, 0.6, 0.8)
    assert (recall.medr, recall.meanr, recall.queries) == (4, 6, 5)
    assert summarise(np.array([])) is None


MATRIX: Matrix = [
    [50.0, None, None],
    [44.0, 60.0, None],
    [40.0, 61.0, 30.0],
]


def test_forgetting_by_hand() -> None:
    assert backward_forgetting(MATRIX) == pytest.approx(((50 - 40) + (60 - 61)) / 2)
    assert backward_forgetting(MATRIX[:2]) == pytest.approx(6)
    assert forgetting_rates(MATRIX) == [10, -1, 0]
    assert forgetting_rate(MATRIX) == 9  # the sum, and a gain is not clipped
    assert mean_current(MATRIX) == pytest.approx(140 / 3)
    assert mean_final(MATRIX) == pytest.approx(131 / 3)
    assert harmonic_mean(MATRIX) == pytest.approx(2 * 140 * 131 / (3 * 271))
    assert learning_gain(MATRIX, [40.0, 45.0, 25.0]) == pytest.approx(10)


def test_what_is_undefined_is_none() -> None:
    assert backward_forgetting([[50.0]]) is None
    assert backward_forgetting([]) is harmonic_mean([]) is forgetting_rate([]) is mean_final([]) is None
    assert harmonic_mean([[0.0]]) == 0
    silent: Matrix = [[None], [None, 20.0], [None, 15.0, 5.0]]  # the first task has no queries
    assert backward_forgetting(silent) == 5
    assert forgetting_rate(silent) == 5
    assert mean_final(silent) == 10


@pytest.mark.parametrize(
    ("last", "rates", "final", "rate", "mean"),
    [
        # bmu-moco, table 1: R@1 of the last release and FR per task, then the three overall figures.
        ((48.48, 23.45, 30.80, 32.80, 41.83), (5.81, 10.43, 2.90, 3.49), 35.47, 22.63, 37.60),
        ((46.82, 23.27, 30.00, 31.21, 41.94), (7.47, 10.84, 3.40, 4.08), 34.65, 25.79, 37.05),
        ((41.99, 22.09, 29.80, 30.31, 38.53), (12.30, 11.79, 5.40, 5.08), 32.54, 34.57, 35.67),
    ],
    ids=["BMU-MoCo", "BMU-MoCo (local)", "ER-ring"],
)
def test_printed_tables_are_reproduced(
    last: tuple[float, ...], rates: tuple[float, ...], final: float, rate: float, mean: float
) -> None:
    current = [r + f for r, f in zip(last, (*rates, 0.0), strict=True)]
    matrix: Matrix = [
        *([*([0.0] * task), current[task]] for task in range(4)),
        list(last),
    ]
    assert mean_final(matrix) == pytest.approx(final, abs=0.006)
    assert forgetting_rate(matrix) == pytest.approx(rate, abs=0.006)
    assert harmonic_mean(matrix) == pytest.approx(mean, abs=0.011)
    assert backward_forgetting(matrix) == pytest.approx(rate / 4, abs=0.006)
