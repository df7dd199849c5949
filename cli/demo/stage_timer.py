"""Wall-clock seconds of consecutive stages."""

from __future__ import annotations

import time

__all__ = ["StageTimer"]


class StageTimer:
    """Measures the seconds between calls of :meth:`finish_stage`."""

    def __init__(self) -> None:
        self._start = self._stage_start = time.monotonic()
        self._seconds: dict[str, float] = {}

    def finish_stage(self, stage: str) -> None:
        """Record the seconds since the previous stage under this name."""
        now = time.monotonic()
        self._seconds[stage], self._stage_start = now - self._stage_start, now

    def total(self) -> float:
        """Seconds since the timer was created."""
        return time.monotonic() - self._start

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage and in total, rounded for a report."""
        return {
            **{stage: round(seconds, 2) for stage, seconds in self._seconds.items()},
            "total": round(self.total(), 2),
        }
