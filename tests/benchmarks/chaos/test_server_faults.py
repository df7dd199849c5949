"""Ten random faults against the processes of the server deployment: nothing is lost, and no search fails.

Each deployment has a file of its own, so that they run at the same time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.chaos.short_runs import check_ten_faults


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_faults_lose_nothing(tmp_path: Path) -> None:
    check_ten_faults(tmp_path, "server", seed=2)
