"""A check that breaks its promise, its process or its time affects no other check."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu.check_runner import Check, run_checks

MODULE = "tests.benchmarks.gpu.sample_checks"


def _check(name: str, seconds: float = 200.0, **fields: object) -> Check:
    return Check(name, f"{MODULE}:{name}", seconds, **fields)  # type: ignore[arg-type]


def _state(pid: int) -> str:
    """State letter of a process; Z for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.slow
def test_every_check_has_an_outcome_with_its_reason() -> None:
    names = (
        "break_promise",
        "lack_hardware",
        "lack_package",
        "lack_own_module",
        "divide_by_zero",
        "crash",
        "no_such_check",
    )
    results = [*run_checks([*map(_check, names), _check("measure", arguments=(2,))], "plan", 2000)]
    found = {result.name: (result.outcome, result.reason.strip().splitlines()[-1:]) for result in results}
    assert found == {
        "break_promise": ("failed", ["the figure is too small"]),
        "lack_hardware": ("skipped", ["there is no such hardware"]),
        "lack_package": (
            "skipped",
            ["the package faiss cannot be imported: No module named 'faiss.swig'"],
        ),
        "lack_own_module": ("failed", ["ModuleNotFoundError: No module named 'models.no_such_module'"]),
        "divide_by_zero": ("failed", ["ZeroDivisionError: division by zero"]),
        "crash": ("failed", ["its process ended with status -9"]),
        "no_such_check": ("failed", [f"AttributeError: module '{MODULE}' has no attribute 'no_such_check'"]),
        "measure": ("passed", []),
    }
    assert results[0].figures == {"figure": 1}
    assert results[-1].figures == {"figure": 8}


@pytest.mark.slow
def test_check_without_end_is_ended_with_its_processes(tmp_path: Path) -> None:
    file = tmp_path / "server"
    checks = [_check("hang_with_a_server", 20.0), _check("measure", arguments=(1,))]
    hanging, other = run_checks(checks, str(file), 2000)
    assert (hanging.outcome, hanging.reason) == ("failed", "it did not end within 20 s")
    assert other.outcome == "passed"
    assert _state(int(file.read_text())) == "Z"


def test_checks_after_the_budget_are_skipped() -> None:
    (result,) = run_checks([_check("measure", arguments=(1,))], "plan", 1)
    assert result.outcome == "skipped"
    assert "budget of 1 s" in result.reason
