"""Galleries, ranks and forgetting against hand-computed examples and slow references."""

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
        (
            np.array([[0.5, 0.5 + 3e-8, 0.5 - 3e-8]], np.float32),
            [1, 2, 3],
            [1],
            [2],
        ),  # rounding breaks no tie
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
