"""Sparse routing profiles against dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.routing.routing_profiles import RoutingProfiles


def _dense(tasks: int = 6, vocabulary: int = 30) -> np.ndarray:
    rng = np.random.default_rng(4)
    dense = np.where(rng.random((tasks, vocabulary)) < 0.3, rng.random((tasks, vocabulary)), 0)
    dense[[0, 3]] = 0  # silent tasks
    return dense.astype(np.float32)


def test_dense_matrix_round_trips() -> None:
    dense = _dense()
    profiles = RoutingProfiles.from_dense(dense)
    assert len(profiles) == 6
    assert len(profiles.values) == np.count_nonzero(dense)
    np.testing.assert_array_equal(profiles.to_dense(), dense)
    np.testing.assert_array_equal(profiles.to_dense([5, 0, 2]), dense[[5, 0, 2]])
    assert profiles.silent.tolist() == (~dense.any(axis=1)).tolist()
    assert profiles.rows.tolist() == dense.nonzero()[0].tolist()


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": np.array([1, 1, 2])},  # a repeated token
        {"tokens": np.array([2, 1, 1])},
        {"tokens": np.array([0, 1, 4])},  # out of range
        {"tokens": np.array([-1, 1, 2])},
        {"tokens": np.array([0, 1])},
        {"ends": np.array([2, 4])},
        {"ends": np.array([3, 2, 3])},
        {"ends": np.array([2])},
        {"values": np.ones((3, 1), np.float32)},
    ],
)
def test_invalid_arrays_are_refused(damage: dict[str, Any]) -> None:
    valid = {"tokens": np.array([0, 3, 1]), "values": np.ones(3, np.float32), "ends": np.array([2, 3])}
    RoutingProfiles(**valid, vocabulary=4)
    with pytest.raises(ValueError, match="over 4 tokens"):
        RoutingProfiles(**{**valid, **damage}, vocabulary=4)
