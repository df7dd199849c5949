"""A process of embedded mode: in a group of its own, logging to a file, dead when its parent is."""

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

__all__ = ["ChildProcess", "die_with_parent"]

_PR_SET_PDEATHSIG = 1
_LOG_BYTES = 16 * 1024**2
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(nice: int = 0) -> Callable[[], None]:
    """What a new process calls before exec, so that the kernel kills it when its parent ends, however that ends.

    The signal follows the *thread* that spawned: spawn from one that lives as long as the process.
    """
    parent = os.getpid()

    def ask() -> None:
        os.nice(nice)
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it ended before the call
                os._exit(1)

    return ask


@dataclass
class ChildProcess:
    """How to start one process, and its current incarnation.

    Attributes:
        grace: seconds that it gets to end by itself when it is asked to.
        order: children stop in ascending order; those with the same number together.
        nice: how much it gives way to the other processes of the machine.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    fds: Sequence[int] = ()
    grace: float = 5.0
    order: int = 0
    nice: int = 0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0

    def start(self) -> None:
        """Start it; its output is appended to the log."""
        self.trim_log()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env},
                pass_fds=tuple(self.fds),
                process_group=0,  # Ctrl-C in the terminal reaches the supervisor alone
                preexec_fn=die_with_parent(self.nice),
            )
        self.started = time.monotonic()

    def trim_log(self) -> None:
        """Move a log that has grown large aside, in the place of the one before. The process may go on writing: it
        appends, so what follows begins where the log now ends."""
        try:
            if self.log.stat().st_size <= _LOG_BYTES:
                return
        except FileNotFoundError:
            return
        with contextlib.suppress(OSError):  # a full disk needs the room all the more
            shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
        os.truncate(self.log, 0)

    @property
    def exit_status(self) -> int | None:
        """None while it runs or before it was started."""
        return None if self.process is None else self.process.poll()

    def ask_to_stop(self) -> None:
        """SIGTERM, to the process alone: it looks after its own children."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """SIGKILL to whatever is left of its group."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""
