"""Memory of child processes, and its growth per video."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.ingest.process_memory import MemoryRecord, descendants


def test_descendants_name_the_roles_of_service_processes_only() -> None:
    program = "print(flush=True); input()"
    roles = {"serve": "API", "cpu": "probing worker", "gpu": "learning worker", "other": None}
    processes = {
        word: subprocess.Popen(
            [sys.executable, "-c", program, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for word in roles
    }
    try:
        for process in processes.values():
            assert process.stdout is not None
            process.stdout.readline()
        found = dict(descendants())
        assert {word: found.get(process.pid) for word, process in processes.items()} == roles
        assert os.getpid() not in found
    finally:
        for process in processes.values():
            process.communicate()


def test_slope_ignores_the_first_half_and_other_stages() -> None:
    growing = [("probing", done, 10_000_000 * (done == 0) + 500 * done) for done in range(0, 101, 10)]
    record = MemoryRecord([*growing, *(("indexing", done, 7) for done in range(10))])
    assert record.slope("probing") == pytest.approx(500)
    assert record.slope("indexing") == pytest.approx(0, abs=1e-9)
    assert record.slope("training") is None
    assert record.peak_mib == pytest.approx(10_000_000 / 1024**2)
