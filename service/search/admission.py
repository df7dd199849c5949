"""Admission control: limit the number of concurrent searches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from service.core.errors import TooManyRequests


class AdmissionControl:
    """Admits searches to this process up to a number. Thread-safe.

    Args:
        max_admitted: Maximum number of concurrent searches. A request that comes alone is admitted, whatever its size.
    """

    def __init__(self, max_admitted: int) -> None:
        self._max_admitted = max_admitted
        self._lock = Lock()
        self._admitted = 0

    @contextmanager
    def admit(self, count: int) -> Iterator[None]:
        """Hold a place for a request with ``count`` searches during the ``with`` block.

        Raises:
            TooManyRequests: Too many searches are waiting or running.
        """
        with self._lock:
            self.check(count)
            self._admitted += count
        try:
            yield
        finally:
            with self._lock:
                self._admitted -= count

    def check(self, count: int = 1) -> None:
        """Check whether a request would be admitted now; raises TooManyRequests as :meth:`admit`."""
        if self._admitted and self._admitted + count > self._max_admitted:
            raise TooManyRequests(
                f"The server is busy: {self._admitted} searches are waiting or running, this request "
                f"adds {count}, and the limit is {self._max_admitted}. Try again in a second."
            )
