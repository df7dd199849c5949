"""Routing evidence against values computed by hand, and accuracies on a small published split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.routing.routing_comparison import (
    TextEncoder,
    compare_routing,
    logistic_evidence,
    multinomial_evidence,
    profile_evidence,
    read_captions,
    routing_table,
    token_counts,
)
from models.backbones.backbone import Backbone


def write_split(path: Path, *, captioned: bool) -> Path:
    def clips(noun: str, prefix: str) -> list[dict[str, Any]]:
        return [{"video_id": f"{prefix}{noun}{n}", "caption": f"a {noun} moves"} for n in range(4)]

    def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows if captioned else [{"video_id": row["video_id"]} for row in rows]

    tasks = [
        {"task": number, "train": {noun: bare(clips(noun, "train"))}, "val": {noun: clips(noun, "test")}}
        for number, noun in enumerate(("horse", "truck", "piano"), 1)
    ]
    path.write_text(json.dumps(tasks))
    return path


@pytest.mark.parametrize("captioned", [True, False])
def test_words_of_one_task_route_all_queries(
    tmp_path: Path, shipped_backbone: Backbone, captioned: bool
) -> None:
    path = write_split(tmp_path / "three.json", captioned=captioned)
    result = compare_routing("three", read_captions(path), TextEncoder(shipped_backbone))
    assert (result.tasks, result.queries, result.has_training_captions) == (3, 12, captioned)
    assert result.accuracies["chance"] == pytest.approx((100 / 3, 200 / 3, 100))
    for name in (
        "token profiles",
        "multinomial naive Bayes",
        "logistic regression on TF-IDF, all tasks at once",
    ):
        assert result.accuracies[name] == (100, 100, 100), name
    table = routing_table([result])
    assert ("three (2 folds)" in table) != captioned
    assert "| token profiles | 100.0 / 100.0 / 100.0 |" in table


LABELS = np.array([0, 0, 1])


def test_evidence_of_tokens() -> None:
    counts = token_counts([np.array([0, 1]), np.array([0]), np.array([2])], LABELS, 4)
    np.testing.assert_array_equal(counts, [[2, 1, 0, 0], [0, 0, 1, 0]])
    queries = [np.array([0, 2]), np.array([3])]
    np.testing.assert_allclose(
        profile_evidence(counts, queries),
        [[np.log1p(8 / 3), np.log1p(4)], [0, 0]],
        rtol=5e-4,  # half precision
    )
    first, second = 3.4, 1.4  # smoothed token counts of the tasks
    np.testing.assert_allclose(
        multinomial_evidence(counts, queries),
        [
            [np.log(2.1 / first) + np.log(0.1 / first), np.log(0.1 / second) + np.log(1.1 / second)],
            [np.log(0.1 / first), np.log(0.1 / second)],
        ],
    )


def test_logistic_regression_separates_tasks() -> None:
    vectors = np.eye(3)
    evidence = logistic_evidence(vectors, np.array([0, 1, 1]), vectors)
    assert evidence.argmax(axis=1).tolist() == [0, 1, 1]
