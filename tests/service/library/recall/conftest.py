"""Measured libraries without workers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.measured_library import add_measured_domains

Measure = Callable[..., None]


@pytest.fixture
def measure() -> Measure:
    """``measure(cells, …)``: see :func:`tests.measured_library.add_measured_domains`."""
    return add_measured_domains


@pytest.fixture
def recalls() -> Callable[[int], dict[tuple[int, int], float]]:
    """``recalls(n)``: the cells of n releases on their tasks."""

    def make(releases: int) -> dict[tuple[int, int], float]:
        values = np.random.default_rng(5).random((releases + 1, releases + 1))
        return {(i, t): float(values[i, t]) for i in range(1, releases + 1) for t in range(1, i + 1)}

    return make
