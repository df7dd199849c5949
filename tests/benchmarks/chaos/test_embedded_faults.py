"""Ten random faults against the processes of the embedded deployment: nothing is lost, and no search fails.

Each deployment has a file of its own, so that they run at the same time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.chaos.short_runs import check_ten_faults


@pytest.mark.endurance  # the faults of the server deployment are the same, and have more processes
@pytest.mark.timeout(7200)
def test_ten_faults_lose_nothing(tmp_path: Path) -> None:
    check_ten_faults(tmp_path, "embedded", seed=1)
