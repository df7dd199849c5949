"""The processes of a chaos run: their environment, and their IDs by role."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.chaos.process_faults import FOLDER_VARIABLE

COMMAND = (sys.executable, "-P", "-m", "cli.main")
ROLES: dict[str, tuple[str, ...]] = {
    "supervisor": ("cli.main", "up"),
    "api": ("cli.main", "serve"),
    "probing worker": ("cli.main", "worker", "--queue", "cpu"),
    "learning worker": ("cli.main", "worker", "--queue", "gpu"),
    "redis": ("redis-server",),
}
"""Role of a process → consecutive arguments of its command line."""

_ROOT = Path(__file__).resolve().parents[2]
_PRELOAD = Path(__file__).resolve().parent / "preload"


def process_environment(faults: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Build the environment for a run's processes: only these settings for the service, and the fault hooks.

    Args:
        faults: Folder where faults are armed; it identifies the run's processes.
        settings: Settings by environment variable.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CINESTRATA_")}
    return {
        **inherited,
        **settings,
        "PYTHONPATH": os.pathsep.join(map(str, (_PRELOAD, _ROOT, _ROOT / "clients" / "python"))),
        FOLDER_VARIABLE: str(faults),
    }


def find_processes(faults: Path, role: str) -> list[int]:
    """Find the processes of a role by ID, ascending, without those that they forked.

    Args:
        faults: Folder where the run's faults are armed; it is inside the run's folder.
        role: Key of :data:`ROLES`.
    """
    marker = f"{FOLDER_VARIABLE}={faults}".encode()
    run = faults.resolve().parent
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError):
            # Redis overwrites its environment with its title, and works in its message folder.
            is_own = marker in (entry / "environ").read_bytes().split(b"\0")
            if not is_own and not (entry / "cwd").resolve().is_relative_to(run):
                continue
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            status = (entry / "stat").read_text().rpartition(")")[2].split()
            if _has_role(arguments, ROLES[role]) and status[0] != "Z":
                parents[int(entry.name)] = int(status[1])
    return sorted(pid for pid, parent in parents.items() if parent not in parents)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _has_role(arguments: list[str], wanted: tuple[str, ...]) -> bool:
    if len(wanted) == 1:  # an executable; Redis replaces its arguments with its address
        return wanted[0] in arguments[0]
    count = len(wanted)
    return any(tuple(arguments[start : start + count]) == wanted for start in range(len(arguments)))
