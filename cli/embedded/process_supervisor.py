"""Keeps the processes of embedded mode alive, and ends them in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from types import FrameType

from cli.embedded.child_process import ChildProcess

__all__ = ["StartFailed", "Supervisor"]

_TICK = 0.1
_LONGEST_BACK_OFF = 30.0
_HEALTHY_AFTER = 60.0  # a child that ran this long starts over with the shortest back-off
_START_TRIES = 3
_SAME_REQUEST = 1.0  # seconds; a signal often comes twice, to the process and to its group


class StartFailed(Exception):
    """A child ended again and again before the service was ready. The message holds its last words."""


class Supervisor:
    """Starts children, restarts those that end, and stops all of them.

    Everything happens in the calling thread, which must be the main one: children die with the thread that
    spawned them.

    Args:
        report: told about each restart, in a sentence.
        buried: called with the process id of each child that ended unasked, before it starts again.
    """

    def __init__(
        self, report: Callable[[str], None] = lambda _: None, buried: Callable[[int], None] = lambda _: None
    ) -> None:
        self._children: list[ChildProcess] = []
        self._report = report
        self._buried = buried
        self._signals = 0
        self._first_signal = 0.0
        self._ends: dict[str, int] = {}
        self._due: dict[str, float] = {}

    @property
    def stopping(self) -> bool:
        """Whether somebody asked to stop."""
        return self._signals > 0

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask to stop; a second one stops at once."""

        def note(_number: int, _frame: FrameType | None) -> None:
            now = time.monotonic()
            if self._signals == 0:
                self._first_signal = now
            elif now - self._first_signal < _SAME_REQUEST:
                return
            self._signals += 1

        kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {kind: signal.signal(kind, note) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def start(self, *children: ChildProcess) -> None:
        """Start them and keep them running from now on."""
        for child in children:
            child.start()
            self._children.append(child)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Watch the children until ``ready()``, a request to stop (False), or the time is over (False).

        Raises:
            StartFailed: a child ended too often to go on trying.
        """
        deadline = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < deadline:
            self._restart_ended()
            for child in self._children:
                if self._ends.get(child.name, 0) >= _START_TRIES:
                    raise StartFailed(
                        f"{child.name} does not start. The end of {child.log}:\n{child.last_words()}"
                    )
            if ready():
                return True
            time.sleep(_TICK)
        return False

    def watch(self) -> None:
        """Return when somebody asked to stop."""
        while not self.stopping:
            self._restart_ended()
            time.sleep(_TICK)

    def stop(self) -> None:
        """End all children in their order; what does not end in time is killed, with its own children."""
        ordered = sorted(self._children, key=lambda child: child.order)
        for _, group in groupby(ordered, key=lambda child: child.order):
            self._stop_together(list(group))
        self._children.clear()

    def _stop_together(self, children: Iterable[ChildProcess]) -> None:
        children = list(children)
        asked = self._signals
        now = time.monotonic()
        for child in children:
            child.ask_to_stop()
        while any(
            child.process is not None and child.exit_status is None and time.monotonic() - now < child.grace
            for child in children
        ):
            if self._signals > max(asked, 1):
                break
            time.sleep(0.05)
        for child in children:
            child.kill()

    def _restart_ended(self) -> None:
        now = time.monotonic()
        for child in self._children:
            status = child.exit_status
            if status is None:
                child.trim_log()
                continue
            if child.name not in self._due:
                child.kill()  # its own children, if it left any
                if child.process is not None:
                    self._buried(child.process.pid)
                if now - child.started > _HEALTHY_AFTER:
                    self._ends[child.name] = 0
                ends = self._ends[child.name] = self._ends.get(child.name, 0) + 1
                wait = min(0.5 * 2 ** (ends - 1), _LONGEST_BACK_OFF)
                self._due[child.name] = now + wait
                self._report(
                    f"{child.name} ended with status {status}; it starts again in {wait:g} s (see {child.log})."
                )
            elif now >= self._due[child.name]:
                del self._due[child.name]
                child.start()
