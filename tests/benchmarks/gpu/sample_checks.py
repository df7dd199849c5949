"""Checks that pass, fail, crash and never end, for the tests of their runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.check_runner import CheckFailed, Skipped


def measure(plan: str, factor: int) -> dict[str, Any]:
    return {"figure": len(plan) * factor}


def break_promise(plan: str) -> dict[str, Any]:
    raise CheckFailed("the figure is too small", {"figure": 1})


def lack_hardware(plan: str) -> dict[str, Any]:
    raise Skipped("there is no such hardware")


def lack_package(plan: str) -> dict[str, Any]:
    raise ModuleNotFoundError("No module named 'faiss.swig'", name="faiss.swig")


def lack_own_module(plan: str) -> dict[str, Any]:
    import_module("models.no_such_module")
    return {}


def divide_by_zero(plan: str) -> dict[str, Any]:
    return {"figure": 1 / 0}


def crash(plan: str) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hang_with_a_server(plan: str) -> dict[str, Any]:
    """Start a process, write its ID to the file of the plan, and never end."""
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    Path(plan).write_text(str(server.pid))
    time.sleep(1000)
    return {}
