"""The trend of the memory of a server, and a short load of a service."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soak.run_soak import fit_memory_trend, main

MIB = 1024**2


def test_slope_and_error_are_those_of_the_least_squares_line() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 0.5, 600)
    trend = fit_memory_trend([(s, int((100 + 3 * s / 60 + noise[s]) * MIB)) for s in range(600)])
    assert trend.slope == pytest.approx(3, abs=3 * trend.error)
    # Standard deviation of the noise over the root of the sum of squared deviations of the minutes.
    assert trend.error == pytest.approx(0.5 / np.sqrt(600 * (600**2 - 1) / 12 / 60**2), rel=0.1)
    assert not trend.is_flat


@pytest.mark.endurance
@pytest.mark.timeout(1800)
def test_short_soak_reports_each_phase(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    with suppress(SystemExit):  # a busy machine misses the times, which no test asserts
        main(["--duration", "60s", "--out", str(out)])
    report = json.loads(out.read_text())
    assert report["learned_tasks"] >= 1
    for phase in ("steady", "alone", "learning", "overload"):
        assert min(report[phase]["capacities"]) > 0
        assert report[phase]["answered"] > 0
        assert report[phase]["errors"] == {}
    assert len(report["rows"]) == 8
