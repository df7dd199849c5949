"""Twenty random faults against real processes: nothing is lost, and no search fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.chaos.run_chaos import main


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_twenty_faults_lose_nothing(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    # Exits with status 1 after a violation or a failed search.
    main(["--faults", "20", "--large", "20", "--folder", str(tmp_path / "run"), "--out", str(out)])
    report = json.loads(out.read_text())
    assert len(report["records"]) == 20
    assert {record["mode"] for record in report["records"]} == {"embedded", "server"}
    assert report["struck"] >= 10
    assert report["searches"] > 0
