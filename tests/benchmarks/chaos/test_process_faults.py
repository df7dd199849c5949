"""Kill points exist in the product, end a process once, and the shifted clock moves leases only when it is armed."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos.process_faults import (
    FOLDER_VARIABLE,
    KILL_POINTS,
    KillPoint,
    arm_kill_point,
    disarm,
    killed_process,
)

ROOT = Path(__file__).resolve().parents[3]
PRELOAD = ROOT / "benchmarks" / "chaos" / "preload"


def _run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        FOLDER_VARIABLE: str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, (PRELOAD, ROOT, ROOT / "clients" / "python"))),
    }
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("point", KILL_POINTS.values(), ids=list(KILL_POINTS))
def test_kill_point_is_a_function_of_the_product(point: KillPoint) -> None:
    owner: object = importlib.import_module(point.module)
    *owners, name = point.attribute.split(".")
    for part in owners:
        owner = getattr(owner, part)
    assert callable(getattr(owner, name))
    assert not isinstance(inspect.getattr_static(owner, name), property)


def test_armed_point_ends_one_process_after_the_call(tmp_path: Path) -> None:
    code = (
        "import os; print(os.getpid(), flush=True); from pathlib import Path; "
        "from index.files.store_folder import StoreFolder; "
        "from index.files.manifest_format import Manifest; "
        f"root = Path({str(tmp_path / 'index')!r}); root.mkdir(exist_ok=True); "
        "StoreFolder(root).replace_manifest(Manifest(), Manifest()); print('done')"
    )
    arm_kill_point(tmp_path, "manifest to be replaced")
    assert killed_process(tmp_path) is None
    killed = _run(tmp_path, code)
    assert killed.returncode == -signal.SIGKILL
    assert killed_process(tmp_path) == int(killed.stdout)
    assert not (tmp_path / "index" / "manifest.json").exists()
    assert not disarm(tmp_path), "the process has taken the point"
    assert _run(tmp_path, code).stdout.endswith("done\n")
