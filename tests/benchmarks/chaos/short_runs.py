"""Runs of ten faults, one for each round of operations."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.chaos.run_chaos import main

_FAULTS = 10


def check_ten_faults(folder: Path, mode: str, *, seed: int) -> None:
    """Strike ten faults; a violation or a failed search ends the command with status 1."""
    out = folder / "report.json"
    arguments = ["--modes", mode, "--seed", str(seed), "--faults", str(_FAULTS), "--large", "20"]
    main([*arguments, "--folder", str(folder / "run"), "--out", str(out)])
    report = json.loads(out.read_text())
    assert [record["mode"] for record in report["records"]] == [mode] * _FAULTS
    assert report["struck"] >= _FAULTS // 2
    assert report["searches"] > 0
