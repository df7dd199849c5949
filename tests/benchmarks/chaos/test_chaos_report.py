"""Table of a chaos run: every kind of fault belongs to a group, and the groups add up."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.chaos.chaos_report import FaultRecord, chaos_table, write_chaos_report


def test_groups_add_up(tmp_path: Path) -> None:
    records = [
        FaultRecord(0, "embedded", "kill at: sync sent", 1, 0.1, searches=5, excused_searches=2),
        FaultRecord(1, "server", "kill at: rows written", 1, 0.1, struck=True, searches=7),
        FaultRecord(2, "server", "kill api", 2, 0.1, struck=True, searches=3, failed_searches=["503"]),
        FaultRecord(
            3, "server", "restart the workers with a read-only data folder", 3, 0.1, retried_tasks=["a", "b"]
        ),
        FaultRecord(4, "embedded", "a new kind", 4, 0.1, struck=True, violations=["lost"]),
    ]
    write_chaos_report(tmp_path / "report.json", records, seed=1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["rows"] == [
        ["kill points of all operations", 2, 1, 1, 12, 0, 2, 0, 0],
        ["kill the API, the learning worker, the probing worker", 1, 1, 1, 3, 1, 0, 0, 0],
        ["read-only data folder, full disk", 1, 1, 0, 0, 0, 0, 2, 0],
        ["other", 1, 0, 1, 0, 0, 0, 0, 1],
        ["all", 5, 3, 3, 15, 1, 2, 2, 1],
    ]
    assert {len(row) for row in report["rows"]} == {len(report["columns"])}
    assert "| all | 5 | 3 | 3 | 15 | 1 | 2 | 2 | 1 |" in chaos_table(records)
