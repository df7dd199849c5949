"""A short load of a service."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.soak.run_soak import main


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
