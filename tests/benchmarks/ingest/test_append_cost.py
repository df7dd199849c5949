"""The benchmark of appends and syncs, with a real service and few clips."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ingest.append_cost import measure_append


@pytest.mark.endurance
def test_append_and_syncs_are_measured(tmp_path: Path) -> None:
    result = measure_append(tmp_path, videos=12, appended=3, frames=1)
    assert (result["videos"], result["appended"], result["failed_searches"]) == (12, 3, 0)
    assert result["searches"]["meanwhile"] > 0
    assert len(result["sync_seconds"]) == len(result["sync_command_seconds"]) == 3
