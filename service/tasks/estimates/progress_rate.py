"""Rate of a stage, measured over the recent part of its progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["ProgressRate"]

_MIN_GROWTHS = 3  # reports with growth, after the first one, that give a rate
_MIN_WINDOW_GROWTHS = 32
_MIN_WINDOW = 60.0  # seconds
_WINDOW_SHARE = 0.25  # of the time that the stage has taken
_SPACING = 0.25  # seconds between two stored observations
_PAUSE = 30.0  # seconds; a shorter gap, such as the writing of a checkpoint, is a part of the work
_PAUSE_FACTOR = 10.0  # gap of a pause, relative to the mean gap in the window


class ProgressRate:
    """Rate of a stage, from reports of its progress.

    The window is the last quarter of the stage, at least a minute: a worker that joins or leaves changes the rate soon,
    and single slow videos hardly do. The progress of the first report, which earlier workers have made, is not counted,
    nor is the time until the first growth, in which caches are cold. A single gap much longer than usual is a pause and
    is not counted either; two in a row are a new rate.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._share: float | None = None
        self._began = 0.0
        self._paused = 0.0
        self._long_gaps = 0  # in a row
        self._window: deque[tuple[float, float, int]] = (
            deque()
        )  # time, share, and number of growths until then

    def observe(self, share: float) -> None:
        """Report the completed share of the stage, 0..1. A smaller share than before starts a new measurement."""
        former, self._share = self._share, share
        if former is None or share < former:
            self._window.clear()
        elif share > former:
            self._add(self._clock(), share)

    @property
    def per_second(self) -> float | None:
        """Share of the stage per second; None with too few observations."""
        if not self._window:
            return None
        (start, first, before), (end, last, growths) = self._window[0], self._window[-1]
        if growths - before < _MIN_GROWTHS or end <= start:
            return None
        return (last - first) / (end - start)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end of the stage; None with too few observations."""
        rate = self.per_second
        return None if rate is None or self._share is None else max(1 - self._share, 0.0) / rate

    def _add(self, at: float, share: float) -> None:
        window = self._window
        if not window:
            self._began, self._paused, self._long_gaps = at, 0.0, 0
            window.append((at, share, 0))
            return
        last, _, growths = window[-1]
        gap = at - self._paused - last
        if self._is_long(gap):
            self._long_gaps += 1
            if self._long_gaps > 1:
                window.clear()
                self._add(at, share)
                return
            usual = self._mean_gap()
            self._paused += gap - usual
        else:
            self._long_gaps = 0
        at -= self._paused
        if len(window) > 1 and at - window[-2][0] < _SPACING:
            window.pop()
        window.append((at, share, growths + 1))
        start = at - max(_MIN_WINDOW, _WINDOW_SHARE * (at - self._began))
        while window[1][0] <= start and growths + 1 - window[1][2] >= _MIN_WINDOW_GROWTHS:
            window.popleft()

    def _is_long(self, gap: float) -> bool:
        return self.per_second is not None and gap > max(_PAUSE, _PAUSE_FACTOR * self._mean_gap())

    def _mean_gap(self) -> float:
        (start, _, before), (end, _, growths) = self._window[0], self._window[-1]
        return (end - start) / (growths - before)
