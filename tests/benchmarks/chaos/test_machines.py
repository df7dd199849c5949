"""A service on several machines, whose cables are proxies, so that the test needs no rights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.chaos import fault_kinds, run_chaos


@pytest.mark.endurance
@pytest.mark.timeout(3600)
def test_machines_lose_nothing_without_power_catalog_or_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A violation or a failed search ends the command with status 1."""
    monkeypatch.setattr(run_chaos, "enter_own_network", lambda: False)
    monkeypatch.setattr(fault_kinds, "OUTAGE_SECONDS", 10.0)
    out = tmp_path / "report.json"
    kinds = "cut the cable from api2 to postgres|no power for prober1|restart all machines"
    sizes = ["--modes", "machines", "--faults", "3", "--kind", kinds, "--large", "20"]
    run_chaos.main([*sizes, "--folder", str(tmp_path / "run"), "--out", str(out)])
    records = json.loads(out.read_text())["records"]
    assert {record["kind"] for record in records} == {
        "cut the cable from api2 to postgres",
        "no power for prober1",
        "restart all machines in reverse order with other clocks",
    }
    assert all(record["struck"] for record in records)
