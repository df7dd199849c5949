"""A child process of embedded mode: own process group, log file, killed when its parent ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(nice: int = 0) -> Callable[[], None]:
    """A function for ``preexec_fn`` after which the kernel kills the new process when its parent ends.

    The signal follows the *thread* that started the process, so that thread must live as long as the parent.

    Args:
        nice: Increment of the scheduling priority.
    """
    parent = os.getpid()

    def configure() -> None:
        os.nice(nice)
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent ended before the call
                os._exit(1)

    return configure


@dataclass
class ChildProcess:
    """A command line with its log file, and the process that currently runs it.

    Attributes:
        grace_seconds: Seconds between SIGTERM and SIGKILL.
        stop_order: Processes stop in ascending order; those of equal order stop at the same time.
        nice: Increment of the scheduling priority.
        max_log_bytes: Size above which the log is rotated.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    fds: Sequence[int] = ()
    grace_seconds: float = 5.0
    stop_order: int = 0
    nice: int = 0
    max_log_bytes: int = 16 * 1024**2
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def start(self) -> None:
        """Start the process; its output is appended to the log."""
        self.rotate_log()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                pass_fds=tuple(self.fds),
                process_group=0,  # Ctrl-C in the terminal reaches only the supervisor
                preexec_fn=die_with_parent(self.nice),
            )
        self.started = time.monotonic()

    def rotate_log(self) -> None:
        """Copy a log above the size limit to ``.log.1`` and truncate it.

        The process may keep writing: it appends, so its next line starts at the new end.
        """
        try:
            if self.log.stat().st_size <= self.max_log_bytes:
                return
        except FileNotFoundError:
            return
        with contextlib.suppress(OSError):  # on a full disk, truncating matters more than the copy
            shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
        with contextlib.suppress(OSError):  # on a read-only file system, it is truncated later
            os.truncate(self.log, 0)

    @property
    def exit_status(self) -> int | None:
        """Exit status of the process; None while it runs and before its first start."""
        return None if self.process is None else self.process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the process only; it stops its own children."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to all processes of the group."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""
