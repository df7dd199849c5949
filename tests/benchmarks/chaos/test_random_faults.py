"""Random faults against the processes of a deployment: nothing is lost, and no search fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.chaos.run_chaos import main

FAULTS = 6  # one for each of the first rounds of operations, of which the last one relearns a domain


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param("server", 2, marks=pytest.mark.slow),
        # Its faults are those of the server, on fewer processes.
        pytest.param("embedded", 1, marks=pytest.mark.endurance),
    ],
)
def test_random_faults_lose_nothing(tmp_path: Path, mode: str, seed: int) -> None:
    """A violation or a failed search ends the command with status 1."""
    out = tmp_path / "report.json"
    sizes = ["--large", "20", "--faults", str(FAULTS)]
    where = ["--folder", str(tmp_path / "run"), "--out", str(out)]
    main(["--modes", mode, "--seed", str(seed), *sizes, *where])
    report = json.loads(out.read_text())
    assert [record["mode"] for record in report["records"]] == [mode] * FAULTS
    total = dict(zip(report["columns"], report["rows"][-1], strict=True))
    assert total["struck"] >= FAULTS // 2
    assert total["searches"] > 0
