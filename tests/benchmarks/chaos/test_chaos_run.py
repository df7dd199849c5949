"""Operations and answers of a chaos run, its kill points, and random faults that lose nothing."""

from __future__ import annotations

import importlib
import inspect
import json
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
from benchmarks.chaos.run_chaos import main
from benchmarks.chaos.service_client import QUERIES, compare_answers

Answer = list[tuple[str, float]]


def _answers(first: Answer) -> list[Answer]:
    return [first, *([("x", 0.5)] for _ in QUERIES[1:])]


def test_only_other_scores_order_or_number_of_results_are_differences() -> None:
    """Rounding errors and the order of ties are none."""
    ties = _answers([("a", 0.9), ("b", 0.8), ("c", 0.8), ("d", 0.1)])
    assert compare_answers(ties, _answers([("a", 0.9 + 1e-7), ("c", 0.8), ("b", 0.8), ("d", 0.1)])) == []
    wanted = _answers([("a", 0.9), ("b", 0.8), ("c", 0.7)])
    for changed, sentence in (
        ([("a", 0.9), ("b", 0.81), ("c", 0.7)], "the score at rank 2 is 0.81 instead of 0.8"),
        ([("b", 0.9), ("a", 0.8), ("c", 0.7)], "rank 1 is b instead of a"),
        ([("a", 0.9), ("b", 0.8)], "has 2 results instead of 3"),
    ):
        (difference,) = compare_answers(wanted, _answers(changed))
        assert sentence in difference


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


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("mode", "seed", "faults"),
    [
        pytest.param("server", 2, 3, marks=pytest.mark.slow),
        # One fault for each of the first rounds of operations, of which the last one relearns a domain. Those of the
        # embedded deployment are those of the server, on fewer processes.
        pytest.param("server", 2, 7, marks=pytest.mark.endurance),
        pytest.param("embedded", 1, 7, marks=pytest.mark.endurance),
    ],
)
def test_random_faults_lose_nothing(tmp_path: Path, mode: str, seed: int, faults: int) -> None:
    """A violation or a failed search ends the command with status 1."""
    out = tmp_path / "report.json"
    sizes = ["--large", "20", "--faults", str(faults)]
    where = ["--folder", str(tmp_path / "run"), "--out", str(out)]
    main(["--modes", mode, "--seed", str(seed), *sizes, *where])
    report = json.loads(out.read_text())
    assert [record["mode"] for record in report["records"]] == [mode] * faults
    total = dict(zip(report["columns"], report["rows"][-1], strict=True))
    assert total["struck"] >= faults // 2
    assert total["searches"] > 0
