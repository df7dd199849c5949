"""Routing evidence against values computed by hand, and accuracies on a small published split."""

from __future__ import annotations

import numpy as np

from benchmarks.routing.routing_comparison import (
    logistic_evidence,
    multinomial_evidence,
    profile_evidence,
    token_counts,
)

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
