"""A clock of tests, which advances only on request."""

from __future__ import annotations


class FakeClock:
    """Seconds that a test advances.

    Attributes:
        seconds: Current time.
    """

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        """Return the current time."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self.seconds += seconds
