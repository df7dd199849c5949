"""Report a long run's progress in lines of text, for a terminal, a log file or another process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

REPORT_SECONDS = 30.0


class RunProgress:
    """Reports finished parts at once, and the current state whenever there was no line for a while.

    A thread reports the state, so that stages without progress of their own are reported too. Use it as a context
    manager; the thread ends with the context.

    Args:
        report: Receives the lines, one call at a time.
        interval: Longest time without a line, in seconds.
    """

    def __init__(self, report: Callable[[str], None], interval: float = REPORT_SECONDS) -> None:
        self._report, self._interval = report, interval
        self._state = "starting"
        self._last = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report_states, name="run-progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def update(self, state: str) -> None:
        """Set the current state, for example ``task 3 of 10 (radar): training, step 40 of 60``."""
        self._state = state

    def line(self, text: str) -> None:
        """Report a line at once."""
        with self._lock:
            self._last = time.monotonic()
            self._report(text)

    def _report_states(self) -> None:
        while not self._ended.wait(max(0.0, self._last + self._interval - time.monotonic())):
            if time.monotonic() - self._last >= self._interval:
                with suppress(OSError):  # the receiving process has ended
                    self.line(self._state)
