"""Admission control: limit concurrent searches by count and by expected response time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from service.core.errors import TooManyRequests

_MEMORY_SECONDS = 2.0  # time constant of the measured speed
_FORGOTTEN_SECONDS = 60.0  # a speed measured this long ago says nothing


class AdmissionControl:
    """Admits searches to this process and refuses those that would wait too long. Thread-safe.

    A count alone does not bound the wait, because speed varies with the queries and with other load on the machine.
    Little's law estimates it: with *n* single-search requests admitted and *s* seconds per response, a new search waits
    *n·s*. A request with several searches counts only toward the limit on their number: it has threads of its own and
    is answered as a whole. *s* is measured from the time that ``saturated`` single-search requests are admitted until
    fewer than half as many are: with few, batches are not full and a search takes longer than it would under load, but
    the responses of a full batch come together, and the time that it took is that of all. At most ``saturated``
    requests are never refused.

    Args:
        max_admitted: Maximum number of concurrent searches. A request that comes alone is admitted, whatever its size.
        max_seconds: Maximum estimated response time.
        saturated: Number of single-search requests that keep the process busy.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        max_admitted: int,
        max_seconds: float = math.inf,
        saturated: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_admitted = max_admitted
        self._max_seconds = max_seconds
        self._saturated = saturated
        self._clock = clock
        self._lock = Lock()
        self._admitted = 0
        self._single = 0  # of these, single-search requests
        self._is_measured = False
        # Decaying sums over the measured time.
        self._busy_seconds = 0.0
        self._answered = 0.0
        self._measured_until = -math.inf

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Hold a place for a request during the ``with`` block.

        Args:
            count: Number of searches in the request.

        Raises:
            TooManyRequests: The number of searches or the estimated time exceeds its maximum.
        """
        single = int(count == 1)
        with self._lock:
            self._check(count)
            self._admitted += count
            self._single += single
            if single and not self._is_measured and self._single >= self._saturated:
                self._is_measured, self._measured_until = True, self._clock()
        is_answered = False
        try:
            yield
            is_answered = True
        finally:
            with self._lock:
                if single and self._is_measured:
                    self._measure(int(is_answered))
                self._admitted -= count
                self._single -= single
                self._is_measured &= self._single >= self._saturated / 2

    def check(self) -> None:
        """Check whether a single-search request would be admitted now.

        Raises:
            TooManyRequests: As :meth:`admit`.
        """
        with self._lock:
            self._check(1)

    def _check(self, count: int) -> None:
        if not self._admitted:
            return
        if self._admitted + count > self._max_admitted:
            raise TooManyRequests(
                f"The server is busy: {self._admitted} searches are waiting or running, this request "
                f"adds {count}, and the limit is {self._max_admitted}. Try again in a second."
            )
        seconds = self._expected_seconds(self._single + 1)
        if seconds > self._max_seconds:
            raise TooManyRequests(
                f"The server is busy: a response would take about {seconds:.1f} seconds, and the limit "
                f"is {self._max_seconds:g}. Try again in a second."
            )

    def _expected_seconds(self, count: int) -> float:
        """Estimate the response time in seconds with this many requests; 0 if they do not saturate the process."""
        is_forgotten = self._clock() - self._measured_until > _FORGOTTEN_SECONDS
        if count <= self._saturated or self._answered < 1 or is_forgotten:
            return 0.0
        return count * self._busy_seconds / self._answered

    def _measure(self, answered: int) -> None:
        now = self._clock()
        seconds = now - self._measured_until
        decay = math.exp(-seconds / _MEMORY_SECONDS)
        self._busy_seconds = self._busy_seconds * decay + seconds
        self._answered = self._answered * decay + answered
        self._measured_until = now
