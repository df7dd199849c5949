"""Supervisor of the embedded processes: start, restart with back-off, ordered stop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

_POLL_SECONDS = 0.1
_MAX_BACK_OFF_SECONDS = 30.0
_HEALTHY_SECONDS = 60.0  # a process that ran this long restarts with the shortest back-off
_MAX_START_ATTEMPTS = 3
_LOGGED_LINES = 15  # of a process that does not start
_DUPLICATE_SIGNAL_SECONDS = 1.0  # a terminal often sends a signal both to the process and to its group


@contextmanager
def stop_signals(handle: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Handle signals in the ``with`` block, except a duplicate of the first one."""
    first = 0.0

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if not first or now - first >= _DUPLICATE_SIGNAL_SECONDS:
            first = first or now
            handle(number, frame)

    previous = {number: signal.signal(number, receive) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class StartFailed(Exception):
    """A process ended repeatedly before the service was ready. The message contains the end of its log."""


class Supervisor:
    """Starts processes, restarts those that end, and stops all of them.

    All methods must run in the main thread: child processes are killed when the thread that started them ends. A
    restart or failed start is reported by ``on_restart``, and before it the ID of a process that ended by ``on_exit``.
    """

    def __init__(
        self,
        on_restart: Callable[[str], None] = lambda _: None,
        on_exit: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._children: list[ChildProcess] = []
        self._on_restart = on_restart
        self._on_exit = on_exit
        self._signal_count = 0

    @property
    def stopping(self) -> bool:
        """Whether a stop signal was received."""
        return self._signal_count > 0

    def signals(self) -> AbstractContextManager[None]:
        """Handle SIGINT, SIGTERM and SIGHUP as requests to stop; a second signal skips the grace period."""
        return stop_signals(self._count_signal, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def _count_signal(self, *_: object) -> None:
        self._signal_count += 1

    def start(self, *children: ChildProcess) -> None:
        """Start processes and supervise them."""
        for child in children:
            child.start()
            self._children.append(child)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Supervise until ``ready()`` is true; False after a stop signal or the time. Raises StartFailed."""
        deadline = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < deadline:
            self._restart_ended()
            for child in self._children:
                if child.failures >= _MAX_START_ATTEMPTS:
                    raise StartFailed(f"{child.name} doesn't start. End of {child.log}:\n{child.log_tail()}")
            if ready():
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def watch(self) -> None:
        """Supervise until a stop signal is received."""
        while not self.stopping:
            self._restart_ended()
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop all processes in their order; a process that exceeds its grace period is killed with its children."""
        for order in sorted({child.stop_order for child in self._children}):
            self._stop_group([child for child in self._children if child.stop_order == order])
        self._children.clear()

    def _stop_group(self, children: Sequence[ChildProcess]) -> None:
        signals_before, start = self._signal_count, time.monotonic()
        for child in children:
            child.terminate()
        while self._signal_count <= max(signals_before, 1) and any(
            child.is_running and time.monotonic() - start < child.grace_seconds for child in children
        ):
            time.sleep(0.05)
        for child in children:
            child.kill()

    def _restart_ended(self) -> None:
        now = time.monotonic()
        for child in self._children:
            status = child.exit_status
            if status is None:
                child.rotate_log()
            elif child.restart_at is None:
                child.kill()  # processes that it started and left running
                if child.process is not None:
                    self._on_exit(child.process.pid)
                if now - child.started > _HEALTHY_SECONDS:
                    child.failures = 0
                wait = child.schedule_start(now)
                self._on_restart(
                    f"{child.name} ended with status {status} and restarts in {wait:g} s (see {child.log})."
                )
            elif now >= child.restart_at:
                try:
                    child.start()
                except OSError as error:  # its log cannot be opened, or the machine is out of memory
                    wait = child.schedule_start(now)
                    self._on_restart(f"{child.name} cannot be started ({error}); next attempt in {wait:g} s.")


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(nice: int = 0) -> Callable[[], None]:
    """Return a ``preexec_fn`` after which the kernel kills the new process when its parent ends.

    The signal follows the *thread* that started the process, so that thread must live as long as the parent.
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
    """A command line, its log file, and the process that runs it.

    Processes stop in the order of ``stop_order``, those with equal numbers together. ``nice`` lowers the priority.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    fds: Sequence[int] = ()
    grace_seconds: float = 5.0  # between SIGTERM and SIGKILL
    stop_order: int = 0
    nice: int = 0
    max_log_bytes: int = 16 * 1024**2  # a larger log is rotated
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    restart_at: float | None = None

    def start(self) -> None:
        """Start the process, appending its output to the log."""
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
        self.started, self.restart_at = time.monotonic(), None

    def schedule_start(self, now: float) -> float:
        """Count a failure and return the seconds until the next start, which grow with each failure."""
        self.failures += 1
        wait = min(0.5 * 2 ** (self.failures - 1), _MAX_BACK_OFF_SECONDS)
        self.restart_at = now + wait
        return wait

    def rotate_log(self) -> None:
        """Copy a log above the size limit to ``.log.1``, and truncate it: the process appends its next line."""
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

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM to the process alone; it stops its own children."""
        if self.process is not None and self.is_running:
            self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to all processes of the group."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOGGED_LINES:])
        except FileNotFoundError:
            return ""
