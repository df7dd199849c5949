"""Supervisor of the processes of embedded mode: start, restart with back-off, ordered stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from types import FrameType

from cli.embedded.child_process import ChildProcess

_POLL_SECONDS = 0.1
_MAX_BACK_OFF_SECONDS = 30.0
_HEALTHY_SECONDS = 60.0  # a process that ran this long restarts with the shortest back-off
_MAX_START_ATTEMPTS = 3
_DUPLICATE_SIGNAL_SECONDS = 1.0  # a terminal often sends a signal both to the process and to its group


class StartFailed(Exception):
    """A process ended repeatedly before the service was ready. The message contains the end of its log."""


class Supervisor:
    """Starts processes, restarts those that end, and stops all of them.

    All methods run in the calling thread, which must be the main one: child processes are killed when the thread
    that started them ends.

    Args:
        on_restart: Called with a sentence before each restart, and after a start that failed.
        on_exit: Called with the process id of each process that ended unexpectedly, before its restart.
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
        self._first_signal = 0.0
        self._exit_counts: dict[str, int] = {}
        self._restart_times: dict[str, float] = {}

    @property
    def stopping(self) -> bool:
        """Whether a stop signal was received."""
        return self._signal_count > 0

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP as requests to stop; a second signal skips the grace period."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            now = time.monotonic()
            if self._signal_count == 0:
                self._first_signal = now
            elif now - self._first_signal < _DUPLICATE_SIGNAL_SECONDS:
                return
            self._signal_count += 1

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def start(self, *children: ChildProcess) -> None:
        """Start processes and supervise them from now on."""
        for child in children:
            child.start()
            self._children.append(child)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Supervise until ``ready()`` is true.

        Returns:
            False if a stop signal was received or the time ran out.

        Raises:
            StartFailed: A process ended too often.
        """
        deadline = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < deadline:
            self._restart_ended()
            for child in self._children:
                if self._exit_counts.get(child.name, 0) >= _MAX_START_ATTEMPTS:
                    raise StartFailed(
                        f"{child.name} does not start. The end of {child.log}:\n{child.log_tail()}"
                    )
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
        ordered = sorted(self._children, key=lambda child: child.stop_order)
        for _, group in groupby(ordered, key=lambda child: child.stop_order):
            self._stop_group(list(group))
        self._children.clear()

    def _stop_group(self, children: Iterable[ChildProcess]) -> None:
        children = list(children)
        signals_before = self._signal_count
        start = time.monotonic()
        for child in children:
            child.terminate()
        while any(
            child.process is not None
            and child.exit_status is None
            and time.monotonic() - start < child.grace_seconds
            for child in children
        ):
            if self._signal_count > max(signals_before, 1):
                break
            time.sleep(0.05)
        for child in children:
            child.kill()

    def _restart_ended(self) -> None:
        now = time.monotonic()
        for child in self._children:
            status = child.exit_status
            if status is None:
                child.rotate_log()
                continue
            if child.name not in self._restart_times:
                child.kill()  # processes that it started and left running
                if child.process is not None:
                    self._on_exit(child.process.pid)
                if now - child.started > _HEALTHY_SECONDS:
                    self._exit_counts[child.name] = 0
                wait = self._schedule_start(child, now)
                self._on_restart(
                    f"{child.name} ended with status {status} and restarts in {wait:g} s (see {child.log})."
                )
            elif now >= self._restart_times[child.name]:
                try:
                    child.start()
                except OSError as error:
                    # Its log cannot be opened, or the machine has no memory for a process.
                    wait = self._schedule_start(child, now)
                    self._on_restart(f"{child.name} cannot be started ({error}); next attempt in {wait:g} s.")
                else:
                    del self._restart_times[child.name]

    def _schedule_start(self, child: ChildProcess, now: float) -> float:
        """Count a failure, and return the seconds until the next start, which increase with each."""
        failures = self._exit_counts[child.name] = self._exit_counts.get(child.name, 0) + 1
        wait = min(0.5 * 2 ** (failures - 1), _MAX_BACK_OFF_SECONDS)
        self._restart_times[child.name] = now + wait
        return wait
